"""The contract that all stages share: spec, bundle, quantizer mathematics and the numpy reference. Ships to the Pi."""
