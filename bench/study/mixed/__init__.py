"""Does training in 16 bits run faster, and as well?"""
