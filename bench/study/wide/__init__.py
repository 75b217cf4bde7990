"""Do narrower weights quantize better?"""
