/* Requests and replies of the protocol (device/agent/protocol.py): what is common to the agent and to the loop. */
#ifndef AGENT_REPLIES_H
#define AGENT_REPLIES_H
#include "constants.h"
#include "json.h"

struct request { struct object members; struct value op, id; };

extern struct text fault;           /* the message of the refusal that is being written */

/* Read one line; 0 where it is refused, and the refusal is in t. */
int read_request(struct text *t, struct request *r, const char *begin, const char *end);
/* Refuse a field that an operation does not have; `known` ends with 0. */
int check_fields(struct text *t, const struct request *r, const char *const *known);
void put_head(struct text *t, const struct request *r, int is_ok);
void begin_fault(void);
/* Refuse with the message in `fault`; 0. */
int refuse(struct text *t, const struct request *r, const char *code, const char *next);
int refuse_field(struct text *t, const struct request *r, const char *name, struct value, const char *allowed);
/* A flag, or what it is when absent; 0 where it is refused. */
int read_flag(struct text *t, const struct request *r, const char *name, int absent, int *to);
#endif
