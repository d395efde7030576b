/*
 * One end of the packet laboratory: moves IP packets between a network namespace and a pipe.
 *
 *   packet-pipe namespace   makes a network namespace of its own and holds it open for as long as it runs
 *   packet-pipe node        stays in the namespace it was started in, sends as a local process, listens on lo
 *
 * Messages on stdin and stdout: a 32-bit length in host order, a type byte, and that many bytes.
 *   in   I  "IFNAME AABBCCDDEEFF": where to send and listen, and the address of the other end of the link
 *        P  an IP packet to send
 *        C  forget all connections (conntrack) of this namespace
 *        S  answer with S once everything received so far has been handed over
 *   out  P  an IP packet received        S  ready, or the answer to an S
 * It ends when its stdin does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <signal.h>
#include <unistd.h>

enum { HEADER = 5, PACKET_MAX = 65535, IN_MAX = 1 << 20, OUT_MAX = 1 << 18 };

static uint8_t in_buffer[IN_MAX + HEADER + PACKET_MAX];
static uint8_t out_buffer[OUT_MAX];
static size_t out_length;
static int packets = -1, raw4 = -1, raw6 = -1;
static struct sockaddr_ll peer;

static void die(const char *what) {
  fprintf(stderr, "packet-pipe: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void flush_out(void) {
  size_t done = 0;
  while (done < out_length) {
    ssize_t n = write(STDOUT_FILENO, out_buffer + done, out_length - done);
    if (n < 0 && errno != EINTR) die("write");
    if (n > 0) done += (size_t)n;
  }
  out_length = 0;
}

static void put(char type, const uint8_t *body, uint32_t length) {
  if (out_length + HEADER + length > OUT_MAX) flush_out();
  memcpy(out_buffer + out_length, &length, 4);
  out_buffer[out_length + 4] = (uint8_t)type;
  if (length > 0) memcpy(out_buffer + out_length + HEADER, body, length);
  out_length += HEADER + length;
}

static void drain(void) {
  static uint8_t packet[PACKET_MAX];
  for (;;) {
    struct sockaddr_ll from;
    socklen_t size = sizeof from;
    ssize_t n = recvfrom(packets, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &size);
    if (n < 0) {
      if (errno == EAGAIN) return;
      if (errno == EINTR || errno == ENETDOWN) continue;
      die("recvfrom");
    }
    uint16_t protocol = ntohs(from.sll_protocol);
    if (from.sll_pkttype == PACKET_OUTGOING || (protocol != ETH_P_IP && protocol != ETH_P_IPV6)) continue;
    put('P', packet, (uint32_t)n);
  }
}

static void listen_on(const char *name) {
  int size = 64 << 20;
  packets = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL));
  if (packets < 0) die("socket(AF_PACKET)");
  if (setsockopt(packets, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) < 0)
    setsockopt(packets, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  peer.sll_family = AF_PACKET;
  peer.sll_protocol = htons(ETH_P_ALL);
  peer.sll_ifindex = (int)if_nametoindex(name);
  if (peer.sll_ifindex == 0) die(name);
  if (bind(packets, (struct sockaddr *)&peer, sizeof peer) < 0) die("bind");
}

static void open_interface(const char *text) {
  char name[IFNAMSIZ];
  unsigned b[6];
  if (sscanf(text, "%15s %2x%2x%2x%2x%2x%2x", name, b, b + 1, b + 2, b + 3, b + 4, b + 5) != 7) {
    errno = EINVAL;
    die(text);
  }
  listen_on(name);
  peer.sll_halen = ETH_ALEN;
  for (int i = 0; i < ETH_ALEN; i++) peer.sll_addr[i] = (uint8_t)b[i];
}

static void open_node(void) {
  raw4 = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
  raw6 = socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
  if (raw4 < 0 || raw6 < 0) die("socket(SOCK_RAW)");
  listen_on("lo");
}

static ssize_t send_link(const uint8_t *packet, size_t length, int six) {
  peer.sll_protocol = htons(six ? ETH_P_IPV6 : ETH_P_IP);
  return sendto(packets, packet, length, 0, (struct sockaddr *)&peer, sizeof peer);
}

static ssize_t send_local(const uint8_t *packet, size_t length, int six) {
  if (six) {
    struct sockaddr_in6 to = {.sin6_family = AF_INET6};
    memcpy(&to.sin6_addr, packet + 24, 16);
    return sendto(raw6, packet, length, 0, (struct sockaddr *)&to, sizeof to);
  }
  struct sockaddr_in to = {.sin_family = AF_INET};
  memcpy(&to.sin_addr, packet + 16, 4);
  return sendto(raw4, packet, length, 0, (struct sockaddr *)&to, sizeof to);
}

/* What a firewall or a missing route answers to a local sender is an outcome, not a failure of this program. */
static int is_outcome(int error) {
  return error == EPERM || error == EACCES || error == ENETUNREACH || error == EHOSTUNREACH || error == EINVAL ||
         error == ECONNREFUSED || error == EPROTO;
}

static void send_packet(const uint8_t *packet, size_t length) {
  int six = length > 0 && packet[0] >> 4 == 6;
  for (int tries = 0; tries < 1000; tries++) {
    ssize_t n = raw4 >= 0 ? send_local(packet, length, six) : send_link(packet, length, six);
    if (n >= 0 || (raw4 >= 0 && is_outcome(errno))) return;
    if (errno != ENOBUFS && errno != EINTR && errno != EAGAIN) die("sendto");
    drain();
    usleep(1000);
  }
  die("sendto");
}

static void forget_connections(void) {
  struct {
    struct nlmsghdr header;
    struct nfgenmsg body;
  } request = {.header = {.nlmsg_len = sizeof request,
                          .nlmsg_type = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE,
                          .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK}};
  struct {
    struct nlmsghdr header;
    struct nlmsgerr error;
    uint8_t rest[256];
  } reply;
  int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
  if (s < 0 || send(s, &request, sizeof request, 0) < 0 || recv(s, &reply, sizeof reply, 0) < 0) die("conntrack flush");
  close(s);
  if (reply.error.error != 0) {
    errno = -reply.error.error;
    die("conntrack flush");
  }
}

static void handle(char type, uint8_t *body, uint32_t length) {
  char text[64] = "";
  switch (type) {
  case 'I':
    memcpy(text, body, length < sizeof text ? length : sizeof text - 1);
    open_interface(text);
    break;
  case 'P':
    send_packet(body, length);
    break;
  case 'C':
    forget_connections();
    break;
  case 'S':
    if (packets >= 0) drain();
    put('S', NULL, 0);
    break;
  default:
    errno = EINVAL;
    die("message type");
  }
}

/* Handles every whole message in the buffer; returns how many bytes remain at its start. */
static size_t handle_all(size_t length) {
  size_t at = 0;
  while (length - at >= HEADER) {
    uint32_t body;
    memcpy(&body, in_buffer + at, 4);
    if (body > PACKET_MAX) {
      errno = EMSGSIZE;
      die("message");
    }
    if (length - at < HEADER + body) break;
    handle((char)in_buffer[at + 4], in_buffer + at + HEADER, body);
    at += HEADER + body;
  }
  memmove(in_buffer, in_buffer + at, length - at);
  return length - at;
}

/* All ends on one processor: packets then stay in one queue, in the order in which they were sent. */
static void pin(void) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) < 0) die("sched_getaffinity");
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &all)) {
      CPU_SET(i, &one);
      break;
    }
  if (sched_setaffinity(0, sizeof one, &one) < 0) die("sched_setaffinity");
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin();
  if (strcmp(argv[1], "namespace") == 0) {
    if (unshare(CLONE_NEWNET) < 0) die("unshare");
  } else {
    open_node();
  }
  put('S', NULL, 0);
  for (size_t length = 0;;) {
    flush_out();
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = packets, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) die("poll");
    if (packets >= 0 && fds[1].revents != 0) drain();
    if ((fds[0].revents & (POLLIN | POLLHUP)) == 0) continue;
    ssize_t n = read(STDIN_FILENO, in_buffer + length, sizeof in_buffer - length);
    if (n == 0) return 0;
    if (n < 0) die("read");
    length = handle_all(length + (size_t)n);
  }
}
