/*
 * Real TCP connections for the packet laboratory.
 *
 *   traffic serve PORT...
 *     accepts on every local address, in both families; writes "ADDRESS PORT\n" (its own end) and echoes what it gets.
 *     Says "ready\n" when it listens.
 *
 *   traffic connect SOURCE DESTINATION PORT RATE
 *     opens RATE connections a second, one after the other or at once, each to read one such line and close. None is opened,
 *     or counted, while the client has no free port. Every line on
 *     stdin asks for a report; at the end of stdin it waits for what is under way, reports, and ends. A report is one line:
 *     ok N refused N timeout N other N slowest MILLISECONDS
 *     followed, in the last one, by a line "ADDRESS PORT N" for each endpoint met.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 256, IN_FLIGHT = 512, ENDPOINTS = 256, TIMEOUT_MS = 20000 };

static void die(const char *what) {
  fprintf(stderr, "traffic: %s: %s\n", what, strerror(errno));
  exit(1);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- serve ---- */

static int listen_at(uint16_t port) {
  int off = 0, on = 1, s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
  if (s < 0) die("socket");
  setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(s, (struct sockaddr *)&any, sizeof any) < 0) die("bind");
  if (listen(s, 4096) < 0) die("listen");
  return s;
}

static void greet(int s) {
  struct sockaddr_in6 own;
  socklen_t size = sizeof own;
  char address[INET6_ADDRSTRLEN], line[INET6_ADDRSTRLEN + 16];
  if (getsockname(s, (struct sockaddr *)&own, &size) < 0) die("getsockname");
  if (IN6_IS_ADDR_V4MAPPED(&own.sin6_addr))
    inet_ntop(AF_INET, own.sin6_addr.s6_addr + 12, address, sizeof address);
  else
    inet_ntop(AF_INET6, &own.sin6_addr, address, sizeof address);
  int n = snprintf(line, sizeof line, "%s %u\n", address, ntohs(own.sin6_port));
  /* A client that has gone meanwhile counts that itself. */
  if (write(s, line, (size_t)n) < 0) shutdown(s, SHUT_RDWR);
}

static void accept_all(int epoll, int listener) {
  for (;;) {
    int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s < 0) {
      if (errno == EAGAIN) return;
      /* Linux passes errors of the new connection on: accept(2). */
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM || errno == EINVAL) die("accept");
      continue;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = s};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, s, &event) < 0) die("epoll_ctl");
    greet(s);
  }
}

static void echo(int s) {
  char buffer[4096];
  ssize_t n = read(s, buffer, sizeof buffer);
  if (n > 0 && write(s, buffer, (size_t)n) == n) return;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  close(s);
}

static int serve(int count, char **ports) {
  int epoll = epoll_create1(EPOLL_CLOEXEC), last = -1;
  if (epoll < 0) die("epoll_create1");
  for (int i = 0; i < count; i++) {
    last = listen_at((uint16_t)atoi(ports[i]));
    struct epoll_event event = {.events = EPOLLIN, .data.fd = last};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, last, &event) < 0) die("epoll_ctl");
  }
  struct epoll_event input = {.events = EPOLLIN, .data.fd = STDIN_FILENO};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &input) < 0) die("epoll_ctl");
  puts("ready");
  fflush(stdout);
  for (;;) {
    struct epoll_event events[EVENTS];
    int n = epoll_wait(epoll, events, EVENTS, -1);
    for (int i = 0; i < n; i++) {
      int s = events[i].data.fd;
      if (s == STDIN_FILENO) return 0;
      /* Listeners were opened first, one after the other, so their numbers come before any connection's. */
      if (s <= last) accept_all(epoll, s);
      else echo(s);
    }
  }
}

/* ---- connect ---- */

struct request {
  int socket;
  double start;
  char line[96];
  size_t length;
};

static struct request requests[IN_FLIGHT];
static int in_flight;
static unsigned long ok, refused, timed_out, other;
static double slowest;
static struct {
  char name[96];
  unsigned long count;
} endpoints[ENDPOINTS];

static socklen_t parse_address(const char *text, uint16_t port, struct sockaddr_storage *out) {
  struct sockaddr_in *four = (struct sockaddr_in *)out;
  struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
  memset(out, 0, sizeof *out);
  if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    return sizeof *four;
  }
  if (inet_pton(AF_INET6, text, &six->sin6_addr) != 1) {
    errno = EINVAL;
    die(text);
  }
  six->sin6_family = AF_INET6;
  six->sin6_port = htons(port);
  return sizeof *six;
}

static void count_failure(int error) {
  if (error == ECONNREFUSED || error == ECONNRESET) refused++;
  else if (error == ETIMEDOUT) timed_out++;
  else other++;
}

static void count_endpoint(const char *name) {
  for (int i = 0; i < ENDPOINTS; i++) {
    if (endpoints[i].count == 0) snprintf(endpoints[i].name, sizeof endpoints[i].name, "%s", name);
    if (strcmp(endpoints[i].name, name) != 0) continue;
    endpoints[i].count++;
    return;
  }
}

/* With a reset, so that no TIME_WAIT keeps the port. */
static void discard(int index) {
  struct linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(requests[index].socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(requests[index].socket);
  requests[index] = requests[--in_flight];
}

static void end(int index, int error) {
  struct request *r = &requests[index];
  double took = now_ms() - r->start;
  if (took > slowest) slowest = took;
  if (error != 0) {
    count_failure(error);
  } else {
    ok++;
    count_endpoint(r->line);
  }
  discard(index);
}

static void begin(const struct sockaddr_storage *from, const struct sockaddr_storage *to, socklen_t size) {
  int on = 1;
  struct request *r = &requests[in_flight];
  memset(r, 0, sizeof *r);
  r->start = now_ms();
  r->socket = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (r->socket < 0) die("socket");
  setsockopt(r->socket, IPPROTO_IP, 24 /* IP_BIND_ADDRESS_NO_PORT */, &on, sizeof on);
  if (bind(r->socket, (const struct sockaddr *)from, size) < 0) die("bind");
  in_flight++;
  if (connect(r->socket, (const struct sockaddr *)to, size) == 0 || errno == EINPROGRESS) return;
  /* A client that had to wait for a processor opens many at once. That says nothing of the path. */
  if (errno == EADDRNOTAVAIL) discard(in_flight - 1);
  else end(in_flight - 1, errno);
}

/* Reads what has come; true when the request has ended and another one took its place in the list. */
static int advance(int index) {
  struct request *r = &requests[index];
  ssize_t n = read(r->socket, r->line + r->length, sizeof r->line - 1 - r->length);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) {
    end(index, n < 0 ? errno : ECONNRESET);
    return 1;
  }
  r->length += (size_t)n;
  char *newline = strchr(r->line, '\n');
  if (newline == NULL) return 0;
  *newline = '\0';
  end(index, 0);
  return 1;
}

static void report(void) {
  printf("ok %lu refused %lu timeout %lu other %lu slowest %.0f\n", ok, refused, timed_out, other, slowest);
  fflush(stdout);
}

static void poll_requests(int timeout_ms, int *input_open) {
  struct pollfd fds[IN_FLIGHT + 1];
  int sockets[IN_FLIGHT], count = in_flight;
  for (int i = 0; i < count; i++) {
    sockets[i] = requests[i].socket;
    fds[i] = (struct pollfd){.fd = sockets[i], .events = POLLIN};
  }
  fds[count] = (struct pollfd){.fd = *input_open ? STDIN_FILENO : -1, .events = POLLIN};
  if (poll(fds, (nfds_t)count + 1, timeout_ms) < 0 && errno != EINTR) die("poll");
  for (int i = in_flight - 1; i >= 0; i--) {
    if (i < count && fds[i].revents != 0 && advance(i)) continue;
    if (now_ms() - requests[i].start > TIMEOUT_MS) end(i, ETIMEDOUT);
  }
  if (fds[count].revents != 0) {
    char line[256];
    ssize_t n = read(STDIN_FILENO, line, sizeof line);
    if (n > 0) report();
    else *input_open = 0;
  }
}

static int connect_loop(char **arguments) {
  struct sockaddr_storage from, to;
  double period = 1e3 / atof(arguments[3]), next = now_ms();
  socklen_t size = parse_address(arguments[1], (uint16_t)atoi(arguments[2]), &to);
  if (parse_address(arguments[0], 0, &from) != size) return 2;
  int input_open = 1;
  while (input_open || in_flight > 0) {
    for (; input_open && next <= now_ms() && in_flight < IN_FLIGHT; next += period) begin(&from, &to, size);
    double wait = input_open && in_flight < IN_FLIGHT ? next - now_ms() : 50;
    poll_requests(wait < 1 ? 1 : (int)wait, &input_open);
  }
  report();
  for (int i = 0; i < ENDPOINTS && endpoints[i].count > 0; i++) printf("%s %lu\n", endpoints[i].name, endpoints[i].count);
  return 0;
}

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc > 2 && strcmp(argv[1], "serve") == 0) return serve(argc - 2, argv + 2);
  if (argc == 6 && strcmp(argv[1], "connect") == 0) return connect_loop(argv + 2);
  return 2;
}
