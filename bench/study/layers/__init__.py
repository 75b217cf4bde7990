"""Which layer has to keep its bits, and are mixed widths worth it?"""
