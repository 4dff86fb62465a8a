// An HTTP/1.1 origin that costs next to nothing, so that whatever stands before it is what is measured.
//
//     origin            listens on a free port of 127.0.0.1, prints the port, serves until its standard input ends
//
// GET /N, in origin or absolute form, answers N bytes of the pattern. Large bodies go out with sendfile from a memfd.
// One thread, level-triggered epoll; a connection asks for EPOLLOUT only while it is blocked.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pattern.h"

#define SMALL 16384

struct client {
  int fd, last, waits;       // last: close after this answer; waits: EPOLLOUT is asked for
  size_t have;               // bytes of requests in `in`
  size_t head_len, head_off; // the answer's head
  uint64_t body_len, body_off;
  char head[160], in[8192];
};

static int poller, body_fd;
static unsigned char *pattern;

static void leave(struct client *c) {
  close(c->fd);
  free(c);
}

static int fail(const char *what) {
  perror(what);
  return 1;
}

// 1: the answer is out; 0: the socket is full; -1: the connection is broken.
static int answer(struct client *c) {
  while (c->head_off < c->head_len) {
    int whole = c->body_len <= SMALL;
    struct iovec parts[2] = {{c->head + c->head_off, c->head_len - c->head_off}, {pattern, whole ? c->body_len : 0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | (whole ? 0 : MSG_MORE));
    if (sent < 0) return errno == EAGAIN ? 0 : -1;
    size_t of_head = c->head_len - c->head_off;
    if ((size_t)sent < of_head) of_head = sent;
    c->head_off += of_head;
    c->body_off += sent - of_head;
  }
  while (c->body_off < c->body_len) {
    off_t from = c->body_off % PERIOD;
    uint64_t want = c->body_len - c->body_off;
    if (want > (uint64_t)(PERIOD - from)) want = PERIOD - from;
    ssize_t sent = sendfile(c->fd, body_fd, &from, want);
    if (sent <= 0) return sent < 0 && errno == EAGAIN ? 0 : -1;
    c->body_off += sent;
  }
  return 1;
}

// 1: an answer is prepared; 0: the request is not complete; -1: it is none.
static int understand(struct client *c) {
  char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
  if (!end) return c->have == sizeof c->in ? -1 : 0;
  size_t used = end + 4 - c->in;
  end[2] = 0;
  if (strncmp(c->in, "GET ", 4)) return -1;
  char *path = c->in + 4;
  if (!strncmp(path, "http://", 7)) path = strchr(path + 7, '/');
  if (!path || *path != '/') return -1;
  char *rest;
  c->body_len = strtoull(path + 1, &rest, 10);
  c->last = !strncmp(rest, " HTTP/1.0", 9) || strcasestr(rest, "\nconnection: close") != NULL;
  c->head_len = snprintf(c->head, sizeof c->head, "HTTP/1.1 200 OK\r\nContent-Length: %llu\r\n%s\r\n",
                         (unsigned long long)c->body_len, c->last ? "Connection: close\r\n" : "");
  c->head_off = c->body_off = 0;
  c->have -= used;
  memmove(c->in, c->in + used, c->have);
  return 1;
}

static void watch(struct client *c, int write) {
  if (c->waits == write) return;
  c->waits = write;
  struct epoll_event event = {.events = write ? EPOLLOUT : EPOLLIN, .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void serve(struct client *c) {
  if (!c->waits) {
    ssize_t got = read(c->fd, c->in + c->have, sizeof c->in - c->have);
    if (got <= 0) {
      if (got == 0 || errno != EAGAIN) leave(c);
      return;
    }
    c->have += got;
  }
  for (;;) {
    int sent = answer(c);
    if (sent < 0 || (sent && c->last)) return leave(c);
    watch(c, !sent);
    if (!sent) return;
    c->head_len = c->head_off = c->body_len = c->body_off = 0;
    int ready = c->have ? understand(c) : 0;
    if (ready < 0) return leave(c);
    if (!ready) return;
  }
}

static void welcome(int listener) {
  int fd, one = 1;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
    struct client *c = calloc(1, sizeof *c);
    c->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  body_fd = memfd_create("body", MFD_CLOEXEC);
  if (body_fd < 0 || ftruncate(body_fd, PERIOD)) return fail("memfd");
  pattern = mmap(NULL, PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED, body_fd, 0);
  if (pattern == MAP_FAILED) return fail("mmap");
  fill_pattern(pattern);

  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof here;
  if (bind(listener, (void *)&here, size) || listen(listener, 4096)) return fail("listen");
  getsockname(listener, (void *)&here, &size);
  printf("%d\n", ntohs(here.sin_port));
  fflush(stdout);

  poller = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener}, events[256];
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  event.data.ptr = NULL; // standard input: only its end is of interest
  if (epoll_ctl(poller, EPOLL_CTL_ADD, 0, &event)) return fail("standard input must be a pipe");
  for (;;) {
    int count = epoll_wait(poller, events, 256, -1);
    for (int i = 0; i < count; i++) {
      if (events[i].data.ptr == NULL) return 0;
      if (events[i].data.ptr == &listener) welcome(listener);
      else serve(events[i].data.ptr);
    }
  }
}
