"""What single studies measure beside returns: weights' levels, activations' ranges, layers' damage, times."""
