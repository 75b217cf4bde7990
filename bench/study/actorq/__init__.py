"""Do quantized actors make distributed training faster?"""
