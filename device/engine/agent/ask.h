/* One request to a loop's socket, for those who have no program of their own: the reply is printed. */
#ifndef AGENT_ASK_H
#define AGENT_ASK_H

#define ASK_USAGE "policy-agent ask SOCKET REQUEST"

/* The words behind "ask"; the exit status. */
int ask(int count, char *const *words);
#endif
