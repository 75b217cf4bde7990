/* Made by python -m quarl.policy.activations: number in a native artifact, name, f(x). */
#define EACH_ACTIVATION(X) \
    X(0, NATIVE_NONE, x) \
    X(1, NATIVE_RELU, positive(x)) \
    X(2, NATIVE_TANH, tanh64(x)) \
    X(3, NATIVE_SIGMOID, (1.0 + tanh64(x / 2.0)) / 2.0) \
    X(4, NATIVE_ELU, positive(x) + 2.0 * tanh64(negative(x) / 2.0) / (1.0 - tanh64(negative(x) / 2.0))) \
    X(5, NATIVE_LEAKY_RELU, positive(x) + slope * negative(x)) \
    X(6, NATIVE_SILU, x * ((1.0 + tanh64(x / 2.0)) / 2.0))
