#include "policy.c" /* as emlearn wrote it */

int emlearn_decide(void *self, const float *observation, float *outputs)
{
    (void)outputs;
    return policy_predict(observation, *(const int *)self);
}
