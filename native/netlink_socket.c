#include "netlink_socket.h"

#include <errno.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SEND_ATTEMPTS_MAX = 8, SEND_WAIT_MS = 5, RECEIVE_ATTEMPTS_MAX = 64 };
enum { SEND_BUFFER_RESERVE = 32 }; /* what af_netlink's sendmsg keeps for itself */

static int set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) < 0 ? -errno : 0;
}

/* For options that make errors richer: kernels before 4.12 go without. */
static int set_option_if_known(int fd, int name) {
  int error = set_option(fd, SOL_NETLINK, name, 1);
  return error == -ENOPROTOOPT ? 0 : error;
}

/* Forcing needs CAP_NET_ADMIN in the machine's first user namespace: it fails in any other. */
static int set_buffer(int fd, int forced_name, int name, int bytes) {
  int error = set_option(fd, SOL_SOCKET, forced_name, bytes);
  return error == -EPERM ? set_option(fd, SOL_SOCKET, name, bytes) : error;
}

/* Connected to port 0, the socket is closed to other processes' unicasts: af_netlink refuses them at the sender. */
static int connect_to_kernel(struct netlink_socket *socket) {
  struct sockaddr_nl self = { .nl_family = AF_NETLINK };
  const struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
  int send_buffer_bytes = 0;
  socklen_t length = sizeof(self), option_length = sizeof(send_buffer_bytes);
  if (bind(socket->fd, (const struct sockaddr *)&self, length) < 0 ||
      connect(socket->fd, (const struct sockaddr *)&kernel, length) < 0 ||
      getsockname(socket->fd, (struct sockaddr *)&self, &length) < 0 ||
      getsockopt(socket->fd, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, &option_length) < 0)
    return -errno;
  socket->port_id = self.nl_pid;
  socket->send_limit_bytes = (uint32_t)send_buffer_bytes - SEND_BUFFER_RESERVE;
  return 0;
}

int netlink_socket_open(int protocol, int send_bytes, int receive_bytes, struct netlink_socket *ret_socket) {
  struct netlink_socket opened = { .fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol) };
  int error;
  if (opened.fd < 0)
    return -errno;
  if ((error = set_buffer(opened.fd, SO_SNDBUFFORCE, SO_SNDBUF, send_bytes)) == 0 &&
      (error = set_buffer(opened.fd, SO_RCVBUFFORCE, SO_RCVBUF, receive_bytes)) == 0 &&
      (error = set_option_if_known(opened.fd, NETLINK_EXT_ACK)) == 0 &&
      (error = set_option_if_known(opened.fd, NETLINK_CAP_ACK)) == 0 && (error = connect_to_kernel(&opened)) == 0)
    *ret_socket = opened;
  else
    (void)netlink_socket_close(opened.fd);
  return error;
}

int netlink_socket_set_member(int fd, int group, bool member) {
  return set_option(fd, SOL_NETLINK, member ? NETLINK_ADD_MEMBERSHIP : NETLINK_DROP_MEMBERSHIP, group);
}

/* Sending again is safe: af_netlink gives EINTR and EAGAIN before the kernel sees a byte, and what its parts say of
 * the content comes back as messages, never as the result of send. */
int netlink_socket_send(int fd, const void *data, size_t length) {
  struct pollfd writable = { .fd = fd, .events = POLLOUT };
  int error = 0;
  for (int attempt = 0; attempt < SEND_ATTEMPTS_MAX; attempt++) {
    ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
    if (sent >= 0)
      return (size_t)sent == length ? 0 : -EIO;
    error = -errno;
    if (error == -EAGAIN)
      (void)poll(&writable, 1, SEND_WAIT_MS);
    else if (error != -EINTR)
      break;
  }
  return error;
}

static bool is_kernel(const struct sockaddr_nl *sender, socklen_t length) {
  return length == sizeof(*sender) && sender->nl_family == AF_NETLINK && sender->nl_pid == 0;
}

int netlink_socket_receive(int fd, void *buffer, size_t capacity, size_t *ret_length) {
  int error = 0;
  for (int attempt = 0; attempt < RECEIVE_ATTEMPTS_MAX; attempt++) {
    struct sockaddr_nl sender = { .nl_family = AF_UNSPEC };
    struct iovec area = { .iov_base = buffer, .iov_len = capacity };
    struct msghdr message = { .msg_name = &sender, .msg_namelen = sizeof(sender), .msg_iov = &area, .msg_iovlen = 1 };
    ssize_t length = recvmsg(fd, &message, MSG_DONTWAIT);
    if (length < 0 && errno != EINTR)
      return -errno;
    error = length < 0 ? -EINTR : -EPROTO;
    if (length < 0 || !is_kernel(&sender, message.msg_namelen))
      continue;
    if ((message.msg_flags & MSG_TRUNC) != 0)
      return -EMSGSIZE;
    if ((size_t)length < sizeof(struct nlmsghdr))
      return -EBADMSG;
    *ret_length = (size_t)length;
    return 0;
  }
  return error;
}

/* Linux frees the descriptor even when close gives EINTR: there is no second try. */
int netlink_socket_close(int fd) {
  return close(fd) < 0 ? -errno : 0;
}
