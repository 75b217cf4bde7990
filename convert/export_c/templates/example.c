/* The golden test, which is an example, too: open the policy, decide, compare. The exit status is 0 when every output is the
 * reference's to the bit, 1 when one is not, 2 when the policy is refused. */
#include "golden.h"
#include "policy.h"
#if __STDC_HOSTED__
#include <stdio.h>
#endif

static int differs(const struct golden *row)
{
    float outputs[POLICY_OUTPUTS];
    if (policy_decide(row->observation, outputs) != row->decision) return 1;
    for (int i = 0; i < POLICY_OUTPUTS; i++)
        if (outputs[i] != row->outputs[i]) return 1;
    return 0;
}

int main(void)
{
    const enum native_error error = policy_open();
    int wrong = 0;
    if (!error)
        for (int i = 0; i < GOLDEN_ROWS; i++) wrong += differs(&golden[i]);
#if __STDC_HOSTED__
    if (error) printf("%s is refused: it %s\n", POLICY_NAME, native_message(error));
    else printf("%s: %d of %d golden observations decided as by the reference\n", POLICY_NAME, GOLDEN_ROWS - wrong, GOLDEN_ROWS);
#endif
    return error ? 2 : wrong != 0;
}
