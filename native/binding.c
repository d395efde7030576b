/* netlink_socket.h as JavaScript functions. What fails gives a negative errno, of which src/netlink/native.ts makes
 * errors with words; only arguments of a wrong type throw. */
#define NAPI_VERSION 9
#include <errno.h>
#include <malloc.h>
#include <node_api.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <uv.h>

#include "netlink_socket.h"

/* ABI grows with every change of what JavaScript sees: a stale build is refused in clear words. */
enum { ABI = 5, ARGUMENTS_MAX = 3, QUESTION_MAX = 64, ANSWER_MAX = 256 };

static const napi_type_tag HANDLE_TAG = { .lower = 0x6b70726f62650001U, .upper = 0x9d3c51f0a7e24b86U };

/* Freed when its last user lets go: the JavaScript object, the open uv handle, each send in flight. */
struct handle {
  uv_poll_t poll;
  uv_timer_t timer; /* asks `question` again and again, while watched */
  uint8_t question[QUESTION_MAX]; /* a request, and behind it how an answer goes on that is no news */
  napi_env env;
  napi_async_cleanup_hook_handle hook;
  napi_ref callback, object; /* the object is the callback's `this`, and thus lives while watched */
  struct netlink_socket socket;
  int late; /* of a receive that had read datagrams before: for the next one */
  bool closed;
  size_t question_length, sends, users;
};

struct transfer {
  struct handle *handle;
  napi_async_work work;
  napi_deferred deferred;
  napi_ref bytes;
  const void *data;
  size_t length;
  int error;
};

struct arguments {
  napi_value values[ARGUMENTS_MAX];
  int32_t numbers[ARGUMENTS_MAX];
  struct handle *handle;
  void *data;
  size_t length;
};

static napi_value integer(napi_env env, int value) {
  napi_value result = NULL;
  return napi_create_int32(env, value, &result) == napi_ok ? result : NULL;
}

static bool unpack_handle(napi_env env, napi_value value, struct handle **ret_handle) {
  bool ours = false;
  void *handle = NULL;
  if (napi_check_object_type_tag(env, value, &HANDLE_TAG, &ours) != napi_ok || !ours ||
      napi_unwrap(env, value, &handle) != napi_ok)
    return false;
  *ret_handle = handle;
  return true;
}

/* `kinds` has a letter for each argument: h a handle, i an int32, b bytes, f a function. Throws what else comes. */
static bool unpack(napi_env env, napi_callback_info info, const char *kinds, struct arguments *into) {
  size_t count = ARGUMENTS_MAX;
  bool good = napi_get_cb_info(env, info, &count, into->values, NULL, NULL) == napi_ok;
  for (size_t i = 0; good && kinds[i] != '\0'; i++) {
    napi_value value = into->values[i];
    napi_typedarray_type array = napi_int8_array;
    napi_valuetype type = napi_undefined;
    if (kinds[i] == 'h')
      good = unpack_handle(env, value, &into->handle);
    else if (kinds[i] == 'i')
      good = napi_get_value_int32(env, value, &into->numbers[i]) == napi_ok;
    else if (kinds[i] == 'b')
      good = napi_get_typedarray_info(env, value, &array, &into->length, &into->data, NULL, NULL) == napi_ok &&
             array == napi_uint8_array;
    else
      good = napi_typeof(env, value, &type) == napi_ok && type == napi_function;
  }
  if (!good)
    (void)napi_throw_type_error(env, NULL, "an argument of the netlink addon has the wrong type");
  return good;
}

/* The caller's `args`, filled from its `env` and `info`; returns with the exception pending when they do not fit. */
#define UNPACK(kinds) \
  struct arguments args; \
  if (!unpack(env, info, kinds, &args)) return NULL

static void release(struct handle *handle) {
  if (--handle->users == 0)
    free(handle);
}

static void on_timer_closed(uv_handle_t *timer) {
  struct handle *handle = timer->data;
  (void)napi_remove_async_cleanup_hook(handle->hook);
  release(handle);
}

static void on_poll_closed(uv_handle_t *poll) {
  struct handle *handle = poll->data;
  uv_close((uv_handle_t *)&handle->timer, on_timer_closed);
}

static void stop_watching(struct handle *handle) {
  if (handle->callback == NULL)
    return;
  (void)uv_poll_stop(&handle->poll);
  (void)uv_timer_stop(&handle->timer);
  (void)napi_delete_reference(handle->env, handle->callback);
  (void)napi_delete_reference(handle->env, handle->object);
  handle->callback = handle->object = NULL;
}

static void close_fd_when_idle(struct handle *handle) {
  if (!handle->closed || handle->sends > 0 || handle->socket.fd < 0)
    return;
  (void)netlink_socket_close(handle->socket.fd);
  handle->socket.fd = -1;
}

static void shut(struct handle *handle) {
  if (handle->closed)
    return;
  handle->closed = true;
  stop_watching(handle);
  uv_close((uv_handle_t *)&handle->poll, on_poll_closed);
  close_fd_when_idle(handle);
}

/* An open uv handle at the end of a worker's loop would abort the process. */
static void on_environment_end(napi_async_cleanup_hook_handle hook, void *data) {
  shut(data);
}

static void on_collected(napi_env env, void *data, void *hint) {
  shut(data);
  release(data);
}

/* A handle is given even with an error when there is one to shut. */
static int new_handle(napi_env env, const int32_t numbers[ARGUMENTS_MAX], struct handle **ret_handle) {
  struct handle *handle = calloc(1, sizeof(*handle));
  uv_loop_t *loop = NULL;
  int error = handle != NULL && napi_get_uv_event_loop(env, &loop) == napi_ok ? 0 : -ENOMEM;
  if (error == 0)
    error = netlink_socket_open(numbers[0], numbers[1], numbers[2], &handle->socket);
  if (error == 0 && (error = uv_poll_init(loop, &handle->poll, handle->socket.fd)) < 0)
    (void)netlink_socket_close(handle->socket.fd);
  if (error < 0) {
    free(handle);
    return error;
  }
  (void)uv_timer_init(loop, &handle->timer);
  handle->poll.data = handle->timer.data = handle;
  handle->env = env;
  handle->users = 1;
  *ret_handle = handle;
  return napi_add_async_cleanup_hook(env, on_environment_end, handle, &handle->hook) == napi_ok ? 0 : -ENOMEM;
}

/* open(protocol, sendBufferBytes, receiveBufferBytes): { portId, sendLimitBytes } | -errno */
static napi_value open_socket(napi_env env, napi_callback_info info) {
  UNPACK("iii");
  struct handle *handle = NULL;
  napi_value object = NULL, port_id = NULL, limit = NULL;
  int error = new_handle(env, args.numbers, &handle);
  if (error == 0 && napi_create_object(env, &object) == napi_ok &&
      napi_create_uint32(env, handle->socket.port_id, &port_id) == napi_ok &&
      napi_create_uint32(env, handle->socket.send_limit_bytes, &limit) == napi_ok &&
      napi_set_named_property(env, object, "portId", port_id) == napi_ok &&
      napi_set_named_property(env, object, "sendLimitBytes", limit) == napi_ok &&
      napi_type_tag_object(env, object, &HANDLE_TAG) == napi_ok &&
      napi_wrap(env, object, handle, on_collected, NULL, NULL) == napi_ok) {
    handle->users++;
    return object;
  }
  if (handle != NULL)
    shut(handle);
  return integer(env, error < 0 ? error : -ENOMEM);
}

/* setMember(socket, group, 1 to join | 0 to leave): 0 | -errno */
static napi_value set_member(napi_env env, napi_callback_info info) {
  UNPACK("hii");
  return integer(env, netlink_socket_set_member(args.handle->socket.fd, args.numbers[1], args.numbers[2] != 0));
}

/* sendSync(socket, datagram): 0 | -errno */
static napi_value send_sync(napi_env env, napi_callback_info info) {
  UNPACK("hb");
  return integer(env, netlink_socket_send(args.handle->socket.fd, args.data, args.length));
}

/* receive(socket, into, room): length | -errno. Goes on behind the first datagram while `room` bytes are left. */
static napi_value receive(napi_env env, napi_callback_info info) {
  UNPACK("hbi");
  size_t length = 0, start = 0, end = 0, capacity = args.length < INT32_MAX ? args.length : INT32_MAX;
  int error = args.handle->late, room = args.numbers[2] > 0 ? args.numbers[2] : 1; /* with 0, a datagram is lost */
  for (; error == 0 && (end == 0 || start + (size_t)room <= capacity); start = (end + 3) & ~(size_t)3) {
    error = netlink_socket_receive(args.handle->socket.fd, (char *)args.data + start, capacity - start, &length);
    end = error == 0 ? start + length : end;
  }
  args.handle->late = end > 0 && error != -EAGAIN ? error : 0;
  return integer(env, end > 0 ? (int)end : error);
}

static void run_transfer(napi_env env, void *data) {
  struct transfer *transfer = data;
  transfer->error = netlink_socket_send(transfer->handle->socket.fd, transfer->data, transfer->length);
}

static void end_transfer(napi_env env, struct transfer *transfer) {
  (void)napi_delete_reference(env, transfer->bytes);
  (void)napi_delete_async_work(env, transfer->work);
  transfer->handle->sends--;
  close_fd_when_idle(transfer->handle);
  release(transfer->handle);
  free(transfer);
}

/* Runs at the environment's end as well, when JavaScript can no longer run: the promise then never settles. */
static void complete_transfer(napi_env env, napi_status status, void *data) {
  struct transfer *transfer = data;
  napi_deferred deferred = transfer->deferred;
  napi_value result = integer(env, status == napi_ok ? transfer->error : -ECANCELED);
  end_transfer(env, transfer);
  if (result != NULL)
    (void)napi_resolve_deferred(env, deferred, result);
}

/* send(socket, datagram): Promise<0 | -errno> | -errno. The reference keeps the bytes alive, not unchanged. */
static napi_value send_async(napi_env env, napi_callback_info info) {
  UNPACK("hb");
  napi_value name = NULL, promise = NULL;
  struct transfer *transfer = calloc(1, sizeof(*transfer));
  if (transfer == NULL)
    return integer(env, -ENOMEM);
  *transfer = (struct transfer){ .handle = args.handle, .data = args.data, .length = args.length };
  args.handle->sends++;
  args.handle->users++;
  if (napi_create_reference(env, args.values[1], 1, &transfer->bytes) == napi_ok &&
      napi_create_string_utf8(env, "kprobe:send", NAPI_AUTO_LENGTH, &name) == napi_ok &&
      napi_create_async_work(env, NULL, name, run_transfer, complete_transfer, transfer, &transfer->work) == napi_ok &&
      napi_create_promise(env, &transfer->deferred, &promise) == napi_ok &&
      napi_queue_async_work(env, transfer->work) == napi_ok)
    return promise;
  end_transfer(env, transfer);
  return integer(env, -ENOMEM);
}

/* libuv stops polling at POLLERR, which here only says that datagrams were dropped: receive will give ENOBUFS. */
static void on_readable(uv_poll_t *poll, int status, int events) {
  struct handle *handle = poll->data;
  napi_env env = handle->env;
  napi_handle_scope scope = NULL;
  napi_value object = NULL, callback = NULL, error = NULL;
  if (status < 0)
    (void)uv_poll_start(poll, UV_READABLE, on_readable);
  if (napi_open_handle_scope(env, &scope) != napi_ok)
    return;
  if (napi_get_reference_value(env, handle->object, &object) == napi_ok &&
      napi_get_reference_value(env, handle->callback, &callback) == napi_ok &&
      napi_make_callback(env, NULL, object, callback, 0, NULL, NULL) == napi_pending_exception &&
      napi_get_and_clear_last_exception(env, &error) == napi_ok)
    (void)napi_fatal_exception(env, error);
  (void)napi_close_handle_scope(env, scope);
}

/* watch(socket, readable): 0 | -errno */
static napi_value watch(napi_env env, napi_callback_info info) {
  UNPACK("hf");
  if (args.handle->closed || args.handle->callback != NULL)
    return integer(env, args.handle->closed ? -EBADF : -EBUSY);
  if (napi_create_reference(env, args.values[1], 1, &args.handle->callback) != napi_ok ||
      napi_create_reference(env, args.values[0], 1, &args.handle->object) != napi_ok)
    return integer(env, -ENOMEM);
  return integer(env, uv_poll_start(&args.handle->poll, UV_READABLE, on_readable));
}

/* Sends the request without entering JavaScript, which is called when the answer is missing or not the expected one. */
static void on_timer(uv_timer_t *timer) {
  struct handle *handle = timer->data;
  uint8_t answer[ANSWER_MAX];
  uint32_t request = 0; /* nlmsg_len */
  memcpy(&request, handle->question, sizeof(request));
  size_t length = 0, to = handle->question_length, from = request < to ? request : to;
  int error = netlink_socket_send(handle->socket.fd, handle->question, from);
  if (error == 0)
    error = netlink_socket_receive(handle->socket.fd, answer, sizeof(answer), &length);
  if (error < 0 || from == to || length < to || memcmp(answer + from, handle->question + from, to - from) != 0)
    on_readable(&handle->poll, 0, UV_READABLE);
}

/* repeat(watched socket, request and expectation, everyMs): 0 | -errno. Ends with the watch; once more: expects anew. */
static napi_value repeat(napi_env env, napi_callback_info info) {
  UNPACK("hbi");
  struct handle *handle = args.handle;
  uint64_t every = (uint64_t)args.numbers[2];
  if (handle->callback == NULL || args.length > QUESTION_MAX)
    return integer(env, handle->callback == NULL ? -EINVAL : -EMSGSIZE);
  memcpy(handle->question, args.data, args.length);
  handle->question_length = args.length;
  (void)uv_poll_stop(&handle->poll); /* only the timer calls: an answer that stays behind an error must not */
  return integer(env, uv_is_active((void *)&handle->timer) ? 0 : uv_timer_start(&handle->timer, on_timer, every, every));
}

static napi_value unwatch(napi_env env, napi_callback_info info) {
  UNPACK("h");
  stop_watching(args.handle);
  return NULL;
}

/* The descriptor stays open until the sends in flight have ended. */
static napi_value close_socket(napi_env env, napi_callback_info info) {
  UNPACK("h");
  shut(args.handle);
  return NULL;
}

/* releasePages(ranges): 0 | -errno. Pairs of address and length, of pages that are read again from their files. */
static napi_value release_pages(napi_env env, napi_callback_info info) {
  UNPACK("b");
  const uint64_t *range = args.data, *end = range + args.length / sizeof(*range);
  int error = 0;
#ifdef __GLIBC__
  (void)malloc_trim(0);
#endif
  for (; error == 0 && end - range >= 2; range += 2)
    error = madvise((void *)(uintptr_t)range[0], range[1], MADV_DONTNEED) == 0 ? 0 : -errno;
  return integer(env, error);
}

NAPI_MODULE_INIT() {
  const napi_property_descriptor properties[] = {
    { .utf8name = "abi", .value = integer(env, ABI), .attributes = napi_enumerable },
    { .utf8name = "open", .method = open_socket },
    { .utf8name = "setMember", .method = set_member },
    { .utf8name = "sendSync", .method = send_sync },
    { .utf8name = "send", .method = send_async },
    { .utf8name = "receive", .method = receive },
    { .utf8name = "watch", .method = watch },
    { .utf8name = "repeat", .method = repeat },
    { .utf8name = "unwatch", .method = unwatch },
    { .utf8name = "close", .method = close_socket },
    { .utf8name = "releasePages", .method = release_pages },
  };
  (void)napi_define_properties(env, exports, sizeof(properties) / sizeof(properties[0]), properties);
  return exports;
}
