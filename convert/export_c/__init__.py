"""A policy as C: the native engine, the policy as an array, a header, an example and its golden test, in one folder."""
