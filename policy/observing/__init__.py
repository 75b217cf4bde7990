"""From sensor values to what the normaliser takes: values of earlier periods, and float operators."""
