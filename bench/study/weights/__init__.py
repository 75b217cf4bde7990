"""What do a policy's weights look like, and the levels that they are rounded to?"""
