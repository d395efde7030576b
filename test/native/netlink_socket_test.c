/*
 * The POSIX half against the real kernel, without Node. Runs inside a user and network namespace of its own. The
 * system calls that cannot be made to fail at will are wrapped by the linker (-Wl,--wrap).
 */
#include "../../native/netlink_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER_BYTES = 64 * 1024, MIB = 1 << 20, ONE_LINK = 0, ALL_LINKS = NLM_F_DUMP };

/* What the wrapped calls do next; all zero: what the system does. */
static struct {
  int send_error, send_failures, send_calls, send_shortfall;
  int receive_error, receive_failures, receive_bytes;
  int refused_level, refused_option, refused_error;
  int polls;
} fault;

ssize_t __real_send(int fd, const void *data, size_t length, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
ssize_t __wrap_send(int fd, const void *data, size_t length, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

ssize_t __wrap_send(int fd, const void *data, size_t length, int flags) {
  fault.send_calls++;
  if (fault.send_failures > 0) {
    fault.send_failures--;
    errno = fault.send_error;
    return -1;
  }
  ssize_t sent = __real_send(fd, data, length, flags);
  return sent > 0 ? sent - fault.send_shortfall : sent;
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags) {
  if (fault.receive_failures > 0) {
    fault.receive_failures--;
    errno = fault.receive_error;
    return -1;
  }
  ssize_t length = __real_recvmsg(fd, message, flags);
  return length > 0 && fault.receive_bytes > 0 ? fault.receive_bytes : length;
}

int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
  if (fault.refused_error != 0 && level == fault.refused_level && name == fault.refused_option) {
    errno = fault.refused_error;
    return -1;
  }
  return __real_setsockopt(fd, level, name, value, length);
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
  fault.polls++;
  return __real_poll(fds, count, timeout_ms);
}

static void check(int good, const char *what, int line) {
  if (good)
    return;
  fprintf(stderr, "netlink_socket_test.c:%d: not so: %s (errno %s)\n", line, what, strerror(errno));
  exit(1);
}

#define CHECK(condition) check((condition) ? 1 : 0, #condition, __LINE__)

static struct netlink_socket open_route(int receive_bytes) {
  struct netlink_socket opened = { .fd = -1 };
  CHECK(netlink_socket_open(NETLINK_ROUTE, MIB, receive_bytes, &opened) == 0);
  return opened;
}

struct link_request {
  struct nlmsghdr header;
  struct ifinfomsg link;
};

/* RTM_GETLINK for `lo`, or for all links. */
static struct link_request get_link(int flags) {
  return (struct link_request){
    .header = { .nlmsg_len = sizeof(struct link_request),
                .nlmsg_type = RTM_GETLINK,
                .nlmsg_flags = (__u16)(NLM_F_REQUEST | flags),
                .nlmsg_seq = 7 },
    .link = { .ifi_family = AF_UNSPEC, .ifi_index = flags == ONE_LINK ? 1 : 0 },
  };
}

static void ask(int fd) {
  const struct link_request request = get_link(ONE_LINK);
  CHECK(netlink_socket_send(fd, &request, sizeof(request)) == 0);
}

/* Receives the answer to ask(). */
static void expect_link(int fd) {
  static _Alignas(struct nlmsghdr) char buffer[BUFFER_BYTES];
  struct nlmsghdr header;
  size_t length = 0;
  CHECK(netlink_socket_receive(fd, buffer, sizeof(buffer), &length) == 0);
  memcpy(&header, buffer, sizeof(header));
  CHECK(header.nlmsg_type == RTM_NEWLINK && header.nlmsg_len <= length);
}

static int receive_error(int fd, size_t capacity) {
  static char buffer[BUFFER_BYTES];
  size_t length = 4711;
  int error;
  memset(buffer, 0x5a, sizeof(buffer));
  error = netlink_socket_receive(fd, buffer, capacity, &length);
  CHECK(error < 0);
  CHECK(length == 4711);
  for (size_t i = capacity; i < sizeof(buffer); i++)
    CHECK(buffer[i] == 0x5a);
  return error;
}

static int option(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof(value);
  CHECK(getsockopt(fd, level, name, &value, &length) == 0);
  return value;
}

static int lowest_free_fd(void) {
  int fd = open("/dev/null", O_RDONLY);
  CHECK(fd >= 0);
  close(fd);
  return fd;
}

static void opens_a_socket_of_its_own(void) {
  struct netlink_socket a = open_route(MIB), b = open_route(MIB);
  CHECK(a.port_id != 0 && b.port_id != 0 && a.port_id != b.port_id);
  CHECK((fcntl(a.fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((fcntl(a.fd, F_GETFL) & O_NONBLOCK) != 0);
  CHECK(option(a.fd, SOL_NETLINK, NETLINK_EXT_ACK) == 1);
  CHECK(option(a.fd, SOL_NETLINK, NETLINK_CAP_ACK) == 1);
  CHECK(netlink_socket_close(a.fd) == 0 && netlink_socket_close(b.fd) == 0);
}

static void a_failed_open_leaves_nothing(void) {
  const int free_before = lowest_free_fd();
  struct netlink_socket untouched = { .fd = 99, .port_id = 98, .send_limit_bytes = 97 };
  CHECK(netlink_socket_open(31, MIB, MIB, &untouched) == -EPROTONOSUPPORT);
  CHECK(netlink_socket_open(-1, MIB, MIB, &untouched) == -EPROTONOSUPPORT);
  fault.refused_level = SOL_NETLINK;
  fault.refused_option = NETLINK_CAP_ACK;
  fault.refused_error = ENOMEM;
  CHECK(netlink_socket_open(NETLINK_ROUTE, MIB, MIB, &untouched) == -ENOMEM);
  CHECK(untouched.fd == 99 && untouched.port_id == 98 && untouched.send_limit_bytes == 97);
  CHECK(lowest_free_fd() == free_before);
}

static void an_old_kernel_goes_without_extended_acknowledgements(void) {
  struct netlink_socket socket;
  fault.refused_level = SOL_NETLINK;
  fault.refused_option = NETLINK_EXT_ACK;
  fault.refused_error = ENOPROTOOPT;
  socket = open_route(MIB);
  CHECK(option(socket.fd, SOL_NETLINK, NETLINK_EXT_ACK) == 0);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void buffers_that_cannot_be_forced_end_at_the_systems_limit(void) {
  struct netlink_socket socket = { .fd = -1 };
  fault.refused_level = SOL_SOCKET;
  fault.refused_option = SO_SNDBUFFORCE;
  fault.refused_error = EPERM;
  CHECK(netlink_socket_open(NETLINK_ROUTE, 1 << 30, 65536, &socket) == 0);
  CHECK(socket.send_limit_bytes > 65536 && socket.send_limit_bytes < 1U << 30);
  CHECK(option(socket.fd, SOL_SOCKET, SO_RCVBUF) == 2 * 65536);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void answers_come_back(void) {
  const struct link_request dump = get_link(ALL_LINKS);
  struct netlink_socket socket = open_route(MIB);
  CHECK(receive_error(socket.fd, BUFFER_BYTES) == -EAGAIN);
  ask(socket.fd);
  expect_link(socket.fd);
  CHECK(netlink_socket_send(socket.fd, &dump, sizeof(dump)) == 0);
  expect_link(socket.fd);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void a_truncated_datagram_is_an_error_and_lost(void) {
  struct netlink_socket socket = open_route(MIB);
  ask(socket.fd);
  CHECK(receive_error(socket.fd, sizeof(struct nlmsghdr)) == -EMSGSIZE);
  CHECK(receive_error(socket.fd, BUFFER_BYTES) == -EAGAIN);
  ask(socket.fd);
  CHECK(receive_error(socket.fd, 0) == -EMSGSIZE);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void a_datagram_too_short_for_a_message_is_an_error(void) {
  struct netlink_socket socket = open_route(MIB);
  ask(socket.fd);
  fault.receive_bytes = sizeof(struct nlmsghdr) - 1;
  CHECK(receive_error(socket.fd, BUFFER_BYTES) == -EBADMSG);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static ssize_t unicast(int fd, uint32_t port_id, size_t length) {
  static const char zeros[4096];
  const struct sockaddr_nl to = { .nl_family = AF_NETLINK, .nl_pid = port_id };
  return sendto(fd, zeros, length, 0, (const struct sockaddr *)&to, sizeof(to));
}

static void other_processes_cannot_send_to_us(void) {
  struct netlink_socket ours = open_route(MIB);
  int foreign = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  CHECK(foreign >= 0);
  CHECK(unicast(foreign, ours.port_id, 100) == -1 && errno == ECONNREFUSED);
  CHECK(receive_error(ours.fd, BUFFER_BYTES) == -EAGAIN);
  CHECK(close(foreign) == 0 && netlink_socket_close(ours.fd) == 0);
}

/* A socket that was not connected stands for whatever may find a way past that. */
static void what_others_sent_is_skipped(void) {
  struct netlink_socket ours = open_route(MIB);
  const struct sockaddr none = { .sa_family = AF_UNSPEC };
  int foreign = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  CHECK(foreign >= 0);
  CHECK(connect(ours.fd, &none, sizeof(none)) == 0);
  CHECK(unicast(foreign, ours.port_id, 4096) == 4096);
  CHECK(unicast(foreign, ours.port_id, 1) == 1);
  ask(ours.fd);
  expect_link(ours.fd);
  CHECK(unicast(foreign, ours.port_id, 4096) == 4096);
  CHECK(receive_error(ours.fd, 16) == -EAGAIN);
  for (int i = 0; i < 70; i++)
    CHECK(unicast(foreign, ours.port_id, 100) == 100);
  ask(ours.fd);
  CHECK(receive_error(ours.fd, BUFFER_BYTES) == -EPROTO);
  expect_link(ours.fd);
  CHECK(close(foreign) == 0 && netlink_socket_close(ours.fd) == 0);
}

static void dropped_answers_are_reported_once(void) {
  struct netlink_socket socket = open_route(1);
  for (int i = 0; i < 64; i++)
    ask(socket.fd);
  CHECK(receive_error(socket.fd, BUFFER_BYTES) == -ENOBUFS);
  expect_link(socket.fd);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void interrupted_calls_are_repeated_but_not_for_ever(void) {
  const struct link_request request = get_link(ONE_LINK);
  struct netlink_socket socket = open_route(MIB);
  fault.send_error = EINTR;
  fault.send_failures = 3;
  ask(socket.fd);
  CHECK(fault.send_calls == 4 && fault.polls == 0);
  fault.receive_error = EINTR;
  fault.receive_failures = 3;
  expect_link(socket.fd);
  fault.send_failures = 1000;
  CHECK(netlink_socket_send(socket.fd, &request, sizeof(request)) == -EINTR);
  CHECK(fault.send_failures > 900);
  fault.receive_failures = 1000;
  CHECK(receive_error(socket.fd, BUFFER_BYTES) == -EINTR);
  CHECK(fault.receive_failures > 900);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void a_full_queue_is_waited_for_but_not_for_ever(void) {
  const struct link_request request = get_link(ONE_LINK);
  struct netlink_socket socket = open_route(MIB);
  fault.send_error = EAGAIN;
  fault.send_failures = 2;
  ask(socket.fd);
  CHECK(fault.polls == 2);
  fault.send_failures = 1000;
  CHECK(netlink_socket_send(socket.fd, &request, sizeof(request)) == -EAGAIN);
  CHECK(fault.send_failures > 900);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void other_failures_of_send_are_passed_on_at_once(void) {
  const struct link_request request = get_link(ONE_LINK);
  struct netlink_socket socket = open_route(MIB);
  fault.send_error = ENOBUFS;
  fault.send_failures = 1;
  CHECK(netlink_socket_send(socket.fd, &request, sizeof(request)) == -ENOBUFS);
  CHECK(fault.send_calls == 1);
  fault.send_shortfall = 1;
  CHECK(netlink_socket_send(socket.fd, &request, sizeof(request)) == -EIO);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void a_datagram_fits_up_to_the_limit(void) {
  struct netlink_socket socket = open_route(MIB);
  char *zeros = calloc(1, (size_t)socket.send_limit_bytes + 1);
  CHECK(zeros != NULL);
  CHECK(netlink_socket_send(socket.fd, zeros, socket.send_limit_bytes) == 0);
  CHECK(netlink_socket_send(socket.fd, zeros, (size_t)socket.send_limit_bytes + 1) == -EMSGSIZE);
  free(zeros);
  CHECK(netlink_socket_close(socket.fd) == 0);
}

static void closed_descriptors_are_refused(void) {
  struct netlink_socket socket = open_route(MIB);
  const struct link_request request = get_link(ONE_LINK);
  CHECK(netlink_socket_close(socket.fd) == 0);
  CHECK(netlink_socket_close(socket.fd) == -EBADF);
  CHECK(netlink_socket_send(socket.fd, &request, sizeof(request)) == -EBADF);
  CHECK(netlink_socket_set_member(socket.fd, 1, true) == -EBADF);
  CHECK(receive_error(socket.fd, BUFFER_BYTES) == -EBADF);
}

static void set_loopback(int fd, unsigned flags) {
  struct link_request request = get_link(ONE_LINK);
  request.header.nlmsg_type = RTM_NEWLINK;
  request.link.ifi_flags = flags;
  request.link.ifi_change = IFF_UP;
  CHECK(netlink_socket_send(fd, &request, sizeof(request)) == 0);
}

static void groups_are_joined_and_left(void) {
  struct netlink_socket actor = open_route(MIB), listener = open_route(MIB);
  set_loopback(actor.fd, IFF_UP);
  CHECK(receive_error(listener.fd, BUFFER_BYTES) == -EAGAIN);
  CHECK(netlink_socket_set_member(listener.fd, RTNLGRP_LINK, true) == 0);
  set_loopback(actor.fd, 0);
  expect_link(listener.fd);
  CHECK(netlink_socket_set_member(listener.fd, RTNLGRP_LINK, false) == 0);
  set_loopback(actor.fd, IFF_UP);
  CHECK(receive_error(listener.fd, BUFFER_BYTES) == -EAGAIN);
  CHECK(netlink_socket_set_member(listener.fd, 0, true) == -EINVAL);
  CHECK(netlink_socket_set_member(listener.fd, 4096, true) == -EINVAL);
  CHECK(netlink_socket_close(actor.fd) == 0 && netlink_socket_close(listener.fd) == 0);
}

static void netfilter_answers_too(void) {
  struct {
    struct nlmsghdr header;
    uint32_t family_version_resource;
  } get_generation = {
    .header = { .nlmsg_len = sizeof(get_generation), .nlmsg_type = 10 << 8 | 16, .nlmsg_flags = NLM_F_REQUEST },
  };
  char buffer[256];
  size_t length = 0;
  struct netlink_socket socket = { .fd = -1 };
  CHECK(netlink_socket_open(NETLINK_NETFILTER, MIB, MIB, &socket) == 0);
  CHECK(netlink_socket_send(socket.fd, &get_generation, sizeof(get_generation)) == 0);
  CHECK(netlink_socket_receive(socket.fd, buffer, sizeof(buffer), &length) == 0);
  CHECK(length >= sizeof(get_generation));
  CHECK(netlink_socket_close(socket.fd) == 0);
}

int main(void) {
  static void (*const tests[])(void) = {
    opens_a_socket_of_its_own,
    a_failed_open_leaves_nothing,
    an_old_kernel_goes_without_extended_acknowledgements,
    buffers_that_cannot_be_forced_end_at_the_systems_limit,
    answers_come_back,
    a_truncated_datagram_is_an_error_and_lost,
    a_datagram_too_short_for_a_message_is_an_error,
    other_processes_cannot_send_to_us,
    what_others_sent_is_skipped,
    dropped_answers_are_reported_once,
    interrupted_calls_are_repeated_but_not_for_ever,
    a_full_queue_is_waited_for_but_not_for_ever,
    other_failures_of_send_are_passed_on_at_once,
    a_datagram_fits_up_to_the_limit,
    closed_descriptors_are_refused,
    groups_are_joined_and_left,
    netfilter_answers_too,
  };
  const size_t count = sizeof(tests) / sizeof(tests[0]);
  const int free_before = lowest_free_fd();
  for (size_t i = 0; i < count; i++) {
    memset(&fault, 0, sizeof(fault));
    tests[i]();
  }
  CHECK(lowest_free_fd() == free_before);
  printf("netlink_socket: %zu tests passed\n", count);
  return 0;
}
