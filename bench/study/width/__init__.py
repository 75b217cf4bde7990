"""Do wider weights quantize worse?"""
