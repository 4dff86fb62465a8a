// Clients of a proxy, or of the origin itself, in one thread. One line of JSON a run on standard output.
//
//     load stream   PEER TARGET VIA CLIENTS SECONDS      one endless download per client
//     load tunnels  PEER TARGET VIA CLIENTS SECONDS      new connection, tunnel and 200 bytes, again and again
//     load requests PEER TARGET VIA CLIENTS SECONDS      200 bytes again and again on connections that are kept
//     load hold     PEER TARGET VIA CLIENTS SECONDS      open them all (within SECONDS), say so, wait for the end of
//                                                        standard input, then use each once
//
// PEER and TARGET are PORT numbers of 127.0.0.1: this program speaks to nothing else. VIA is `direct`, `connect` or
// `absolute`. Every run ends by the clock or after MAX_ERRORS. A wrong status, a short body and wrong bytes are errors,
// so a fast wrong answer shows.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "pattern.h"

#define BODY 200ull
#define ENDLESS (1ull << 50)
#define MAX_ERRORS 1000
#define MAX_TIMES 4000000
#define READ_SIZE (256 << 10)
#define OPENING 64 // tunnels of `hold` on their way at a time

enum stage { CLOSED, DIALLING, ASKING, HEAD, BODY_BYTES, HELD };

struct slot {
  int fd, last, reused; // last: the connection cannot be used again
  enum stage stage;
  double began;
  size_t have;
  uint64_t left, got;
  char head[2048];
};

static struct sockaddr_in peer;
static char connect_text[128], request_text[256];
static int connect_len, request_len, poller;
static int streaming, keeping, holding, tunnelling;
static uint64_t body, done, errors, bytes, reused;
static uint32_t *times;
static size_t timed;
static unsigned char pattern[PERIOD], buffer[READ_SIZE];
static const char *last_error = "";

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void drop(struct slot *s) {
  if (s->stage != CLOSED) close(s->fd);
  s->stage = CLOSED;
}

static void wrong(struct slot *s, const char *what) {
  errors++;
  last_error = what;
  drop(s);
}

static void listen_for(struct slot *s, uint32_t what, int operation) {
  struct epoll_event event = {.events = what, .data.ptr = s};
  epoll_ctl(poller, operation, s->fd, &event);
}

static void dial(struct slot *s) {
  int one = 1;
  s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s->fd < 0) {
    errors++;
    last_error = "socket";
    return;
  }
  s->stage = DIALLING;
  s->began = now();
  s->have = s->got = s->last = s->reused = 0;
  setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(s->fd, (void *)&peer, sizeof peer) && errno != EINPROGRESS) return wrong(s, "connect");
  listen_for(s, EPOLLOUT, EPOLL_CTL_ADD);
}

static void say(struct slot *s, const char *text, int len, enum stage then) {
  s->stage = then;
  s->have = s->got = 0;
  if (send(s->fd, text, len, MSG_NOSIGNAL) != len) wrong(s, "send");
}

static void finished(struct slot *s) {
  done++;
  if (timed < MAX_TIMES) times[timed++] = (uint32_t)((now() - s->began) * 1e6);
  if (!keeping || s->last) return drop(s);
  s->reused = 1;
  reused++;
  s->began = now();
  say(s, request_text, request_len, HEAD);
}

static int as_sent(uint64_t offset, const void *data, size_t size) { // one place of every block is looked at
  size_t from = offset % PERIOD, count = size < 64 ? size : 64;
  if (count > PERIOD - from) count = PERIOD - from;
  return !memcmp(pattern + from, data, count);
}

static void take(struct slot *s, const void *data, size_t size) {
  if (size > s->left || !as_sent(s->got, data, size)) return wrong(s, "data");
  s->got += size;
  s->left -= size;
  bytes += size;
  if (!s->left) finished(s);
}

// The head that `s` waits for: its length when complete, else 0. The slot may be closed on return.
static size_t head_of(struct slot *s) {
  ssize_t got = recv(s->fd, s->head + s->have, sizeof s->head - 1 - s->have, 0);
  if (got < 0 && errno == EAGAIN) return 0;
  if (got <= 0 && keeping && s->reused && !s->have) return drop(s), 0; // a server may end a connection it kept
  if (got <= 0) return wrong(s, got ? "reset" : "end"), 0;
  s->have += got;
  s->head[s->have] = 0;
  char *end = memmem(s->head, s->have, "\r\n\r\n", 4);
  if (!end) return s->have == sizeof s->head - 1 ? (wrong(s, "head"), 0) : 0;
  if (strncmp(s->head, "HTTP/1.", 7) || strncmp(s->head + 8, " 200", 4)) return wrong(s, "status"), 0;
  return end + 4 - s->head;
}

static void on_head(struct slot *s) {
  size_t len = head_of(s), more = s->have - len;
  if (!len) return;
  char *length = strcasestr(s->head, "\ncontent-length:");
  if (!length || strtoull(length + 16, NULL, 10) != body) return wrong(s, "length");
  s->last = strcasestr(s->head, "connection: close") != NULL || s->head[7] == '0';
  s->left = body;
  s->stage = BODY_BYTES;
  if (more) take(s, s->head + len, more);
}

static void on_ready(struct slot *s) {
  switch (s->stage) {
  case DIALLING: {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) return wrong(s, "connect");
    listen_for(s, EPOLLIN, EPOLL_CTL_MOD);
    if (tunnelling) return say(s, connect_text, connect_len, ASKING);
    if (!holding) return say(s, request_text, request_len, HEAD);
    s->stage = HELD;
    return;
  }
  case ASKING: {
    size_t len = head_of(s);
    if (!len) return;
    if (len != s->have) return wrong(s, "data before a request");
    if (!holding) return say(s, request_text, request_len, HEAD);
    s->stage = HELD;
    return;
  }
  case HEAD: return on_head(s);
  case BODY_BYTES: {
    ssize_t got = recv(s->fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return wrong(s, "short");
    return take(s, buffer, got);
  }
  case HELD: return wrong(s, "ended while idle");
  case CLOSED: return;
  }
}

static int by_size(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

static void report(double seconds) {
  qsort(times, timed, sizeof *times, by_size);
  uint32_t middle = timed ? times[timed / 2] : 0, tail = timed ? times[timed * 99 / 100] : 0;
  printf("{\"seconds\": %.6f, \"done\": %llu, \"bytes\": %llu, \"errors\": %llu, \"last_error\": \"%s\", "
         "\"reused\": %llu, \"p50_us\": %u, \"p99_us\": %u}\n",
         seconds, (unsigned long long)done, (unsigned long long)bytes, (unsigned long long)errors, last_error,
         (unsigned long long)reused, middle, tail);
  fflush(stdout);
}

// Each held connection carries one more request, with five seconds for it.
static void use_held(struct slot *slots, size_t count) {
  char byte;
  while (read(0, &byte, 1) > 0) {}
  body = BODY;
  for (size_t i = 0; i < count; i++) {
    struct slot *s = &slots[i];
    if (s->stage != HELD) continue;
    say(s, request_text, request_len, HEAD);
    for (double limit = now() + 5; s->stage != CLOSED && errors <= MAX_ERRORS;) {
      struct pollfd p = {.fd = s->fd, .events = POLLIN};
      if (now() > limit || poll(&p, 1, 1000) < 0) wrong(s, "silent");
      else if (p.revents) on_ready(s);
    }
  }
}

// Until the clock, too many errors, or (`hold`) until every slot is open.
static void work(struct slot *slots, size_t count, double until) {
  struct epoll_event events[256];
  double time;
  while ((time = now()) < until && errors <= MAX_ERRORS) {
    size_t opening = 0, held = 0;
    if (holding)
      for (size_t i = 0; i < count; i++) held += slots[i].stage == HELD, opening += slots[i].stage != HELD && slots[i].stage != CLOSED;
    if (holding && held == count) return;
    for (size_t i = 0; i < count; i++)
      if (slots[i].stage == CLOSED && (!holding || opening++ < OPENING)) dial(&slots[i]);
    int ready = epoll_wait(poller, events, 256, (int)((until - time) * 1000) + 1);
    for (int i = 0; i < ready; i++) on_ready(events[i].data.ptr);
  }
}

int main(int argc, char **argv) {
  if (argc != 7) return fprintf(stderr, "load MODE PEER TARGET VIA CLIENTS SECONDS\n"), 2;
  const char *mode = argv[1], *via = argv[4];
  int target = atoi(argv[3]);
  size_t count = strtoul(argv[5], NULL, 10);
  double seconds = atof(argv[6]);
  peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  streaming = !strcmp(mode, "stream"), keeping = !strcmp(mode, "requests"), holding = !strcmp(mode, "hold");
  tunnelling = !strcmp(via, "connect");
  body = streaming ? ENDLESS : BODY;
  connect_len = snprintf(connect_text, sizeof connect_text, "CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", target, target);
  char base[64] = "";
  if (!strcmp(via, "absolute")) snprintf(base, sizeof base, "http://127.0.0.1:%d", target);
  request_len = snprintf(request_text, sizeof request_text, "GET %s/%llu HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\n\r\n",
                         base, (unsigned long long)(streaming ? ENDLESS : BODY), target);

  signal(SIGPIPE, SIG_IGN);
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  fill_pattern(pattern);
  times = malloc(MAX_TIMES * sizeof *times);
  struct slot *slots = calloc(count, sizeof *slots);
  poller = epoll_create1(EPOLL_CLOEXEC);

  double began = now();
  work(slots, count, began + seconds);
  double took = now() - began;
  if (holding) {
    for (size_t i = 0; i < count; i++) done += slots[i].stage == HELD;
    report(took);
    done = 0;
    use_held(slots, count);
  }
  report(took);
  return 0;
}
