"""How few bits can a policy take?"""
