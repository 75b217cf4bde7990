/* Keeps a policy's loop running where there is no systemd, as the unit asks of systemd: starts it, hears its heartbeat,
 * kills one that falls silent or takes too much memory, starts it again, and gives up after several starts in a
 * minute. Where it is killed itself, the kernel ends the loop. What it knows it holds in memory, for others to read in
 * /proc, and in SERVICES/POLICY.state: nothing waits for the disk. It and the loop hold a lock each, by which they are
 * found. */
#ifndef AGENT_SUPERVISE_H
#define AGENT_SUPERVISE_H

#define SUPERVISE_USAGE \
    "policy-agent supervise SERVICES POLICY --watchdog=SECONDS --memory=BYTES -- COMMAND [ARGUMENT ...]"

/* The words behind "supervise"; the exit status. */
int supervise(int count, char *const *words);
#endif
