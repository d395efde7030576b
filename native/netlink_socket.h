/* One netlink socket, as far as POSIX goes: it moves datagrams and never parses them. Functions give 0 or a
 * negative errno, and touch their ret_ outputs only on success. */
#ifndef KPROBE_NETLINK_SOCKET_H
#define KPROBE_NETLINK_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct netlink_socket {
  int fd;
  uint32_t port_id;
  uint32_t send_limit_bytes; /* longest datagram the kernel takes: beyond it send gives -EMSGSIZE */
};

/* Opens a non-blocking socket to the kernel alone. Buffer sizes beyond net.core.wmem_max and rmem_max
 * are forced where the process may, and end there otherwise. */
int netlink_socket_open(int protocol, int send_bytes, int receive_bytes, struct netlink_socket *ret_socket);

/* Joins or leaves a multicast group. */
int netlink_socket_set_member(int fd, int group, bool member);

/* Sends one datagram; returns when the kernel has processed it. Safe to call from any thread. */
int netlink_socket_send(int fd, const void *data, size_t length);

/* Takes one waiting datagram. -EAGAIN: none is waiting. -ENOBUFS: the kernel dropped some. -EMSGSIZE: it was longer
 * than `capacity` and is lost. -EBADMSG: too short to hold a message. -EPROTO: one after another did not come from
 * the kernel, too many to go on skipping. */
int netlink_socket_receive(int fd, void *buffer, size_t capacity, size_t *ret_length);

int netlink_socket_close(int fd);

#endif
