"""Is learning with quantizers worth it?"""
