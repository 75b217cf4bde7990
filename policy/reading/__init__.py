"""What a reader of foreign files holds them to: regular files, wanted arrays, plain names."""
