"""ActorQ: training with quantized actors on one machine or many, through Ray."""
