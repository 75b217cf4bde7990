/* Which device this is and how it fares, from what its kernel says; null where it is unknown. The keys are those of the
 * protocol's DEVICE, CONDITIONS and MEMORY (device/agent/protocol.py). */
#ifndef AGENT_DEVICE_H
#define AGENT_DEVICE_H
#include "text.h"

/* The firmware's throttle word, -1 where there is none. */
long read_throttle_word(void);
/* The members of CONDITIONS; the throttle word. */
long put_conditions(struct text *);
/* The object DEVICE. */
void put_device(struct text *);

/* Sizes of this process in bytes, -1 where the kernel does not say. */
struct resident { int64_t now, peak, anonymous, file_backed, swap; };
struct resident read_resident(void);
/* Let the peak begin again; 0 where the kernel does not allow it. */
int reset_peak(void);
#endif
