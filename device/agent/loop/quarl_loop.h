/* A robot's program in C speaks with the loop (see frames.py beside this file). Linux, little-endian; no library needed.
 *
 *     int loop = quarl_connect("/home/pi/quarl/run/III.sock", &description);
 *     quarl_send(loop, values, description.observation_size, sequence, quarl_now());
 *     if (quarl_receive(loop, &action, 100) == 1) drive(action.head.action);
 *
 * Every function returns -1 where it fails, with errno set. */
#ifndef QUARL_LOOP_H
#define QUARL_LOOP_H

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define QUARL_MAGIC 0x314c5251u /* "QRL1" */
#define QUARL_MOST_OUTPUTS 4096

enum { QUARL_HELLO = 1, QUARL_DESCRIPTION = 2, QUARL_OBSERVATION = 3, QUARL_ACTION = 4, QUARL_ECHO = 5 };

enum { /* flags */
  QUARL_MISSED = 1,         /* the action was ready after its deadline */
  QUARL_STALE = 2,          /* the observation is too old, or none has come */
  QUARL_NON_FINITE = 4,     /* NaN or infinity in the observation or in the outputs */
  QUARL_FALLBACK = 8,       /* the fallback action, not the policy's */
  QUARL_HELD = 16,          /* the action before, once more */
  QUARL_WRONG_RELEASE = 32, /* the observation is for another release */
  QUARL_START = 64,         /* of an observation: an episode begins */
  QUARL_UNTRAINED = 128     /* an element changed that was constant in training; the policy ignores it */
};

#pragma pack(push, 1)
struct quarl_header {
  uint32_t magic;
  uint8_t kind, flags;
  uint16_t count;                /* float values behind the header */
  uint64_t sequence, release;    /* of the observation; 0: any release */
  int64_t observed_ns, sent_ns;  /* CLOCK_MONOTONIC */
  int32_t action;                /* index; -1 of a continuous policy */
  uint32_t missed;               /* deadlines missed since the loop began */
};
struct quarl_description {
  struct quarl_header head;
  uint64_t period_ns;
  uint32_t observation_size, output_size, brought_size, discrete;
};
struct quarl_action {
  struct quarl_header head;
  float outputs[QUARL_MOST_OUTPUTS]; /* head.count of them: logits, or the continuous action */
};
#pragma pack(pop)

static inline int64_t quarl_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Wait at most so long for one packet: 1 it is there, 0 none came, -1 an error; ECONNRESET: the loop is gone. */
static inline int quarl_packet(int loop, void *room, size_t size, int timeout_ms, ssize_t *received) {
  struct pollfd waiting = {loop, POLLIN, 0};
  int ready = poll(&waiting, 1, timeout_ms);
  if (ready <= 0) return ready;
  *received = recv(loop, room, size, 0);
  if (*received == 0) errno = ECONNRESET;
  return *received > 0 ? 1 : -1;
}

/* Connect as the controller; the socket, or -1. EBUSY: the loop refuses, another controller is connected. */
static inline int quarl_connect(const char *path, struct quarl_description *description) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct quarl_header hello = {.magic = QUARL_MAGIC, .kind = QUARL_HELLO};
  ssize_t received = 0;
  if (strlen(path) >= sizeof address.sun_path) return errno = ENAMETOOLONG, -1;
  strcpy(address.sun_path, path);
  int loop = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (loop < 0) return -1;
  int failed = connect(loop, (struct sockaddr *)&address, sizeof address) < 0 ||
               send(loop, &hello, sizeof hello, MSG_NOSIGNAL) < 0 ||
               quarl_packet(loop, description, sizeof *description, 5000, &received) != 1;
  if (!failed && (description->head.magic != QUARL_MAGIC || description->head.kind != QUARL_DESCRIPTION))
    failed = 1, errno = EBUSY;
  if (failed) return close(loop), -1;
  return loop;
}

/* Send an observation of count values, made at observed_ns; 0, or -1. EAGAIN: the loop does not read. */
static inline int quarl_send(int loop, const float *values, uint16_t count, uint64_t sequence, int64_t observed_ns) {
  struct quarl_header head = {.magic = QUARL_MAGIC, .kind = QUARL_OBSERVATION, .count = count, .sequence = sequence,
                              .observed_ns = observed_ns, .sent_ns = quarl_now()};
  struct iovec parts[2] = {{&head, sizeof head}, {(void *)values, count * sizeof *values}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  return sendmsg(loop, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}

/* The next action: 1, 0 where none comes in time, or -1. EPROTO: the loop refuses the observation, in JSON. */
static inline int quarl_receive(int loop, struct quarl_action *action, int timeout_ms) {
  ssize_t received = 0;
  int found = quarl_packet(loop, action, sizeof *action, timeout_ms, &received);
  if (found == 1 && (received < (ssize_t)sizeof action->head || action->head.magic != QUARL_MAGIC))
    return errno = EPROTO, -1;
  return found;
}

#endif
