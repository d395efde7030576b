export interface NetlinkErrorDetails {
  /** The operation that failed: `add element`. */
  readonly operation: string
  /** The object of the operation: `ip kube-proxy frontends (ns1/web)`. */
  readonly object: string
  /** Positive errno. */
  readonly errno: number
  /** NLMSGERR_ATTR_MSG, or our own explanation. */
  readonly extendedAck?: string | undefined
  /** NLMSGERR_ATTR_OFFS: byte offset into the rejected message, or into the datagram that could not be decoded. */
  readonly offset?: number | undefined
  readonly sequence?: number | undefined
  readonly cause?: unknown
  /** Name and words of an errno that only one subsystem has. */
  readonly meaning?: { readonly code: string; readonly words: string } | undefined
}

/** A rejection by the kernel, or bytes that cannot be encoded (EMSGSIZE) or decoded (EBADMSG). */
export class NetlinkError extends Error {
  override readonly name = 'NetlinkError'
  readonly operation: string
  readonly object: string
  readonly errno: number
  /** The errno's name. */
  readonly code: string
  readonly extendedAck: string | undefined
  readonly offset: number | undefined
  readonly sequence: number | undefined

  constructor(details: NetlinkErrorDetails) {
    super(textOf(details), details.cause === undefined ? undefined : { cause: details.cause })
    this.operation = details.operation
    this.object = details.object
    this.errno = details.errno
    this.code = details.meaning?.code ?? errnoName(details.errno)
    this.extendedAck = details.extendedAck
    this.offset = details.offset
    this.sequence = details.sequence
  }
}

function textOf({ operation, object, errno, extendedAck, meaning }: NetlinkErrorDetails): string {
  const where = object === '' ? operation : `${operation} ${object}`
  const why = extendedAck === undefined ? '' : `: ${extendedAck}`
  const { code, words } = meaning ?? { code: errnoName(errno), words: errnoWords(errno) }
  return `${where}: ${code} (${words})${why}`
}

/** Creates the error for bytes of the kernel that violate the protocol; `offset` is into the datagram. */
export function malformed(why: string, offset: number): NetlinkError {
  return new NetlinkError({
    operation: 'decode',
    object: 'netlink message',
    errno: errnoNumber('EBADMSG'),
    extendedAck: `${why} at byte ${offset}`,
    offset,
  })
}

export function unencodable(why: string): NetlinkError {
  return new NetlinkError({
    operation: 'encode',
    object: 'netlink message',
    errno: errnoNumber('EMSGSIZE'),
    extendedAck: why,
  })
}

/**
 * The kernel's answer was lost: it dropped replies (ENOBUFS), none arrived in time (ETIMEDOUT), one cannot be read
 * (EBADMSG), or the socket failed. The request may have succeeded.
 */
export class OutcomeUnknownError extends NetlinkError {}

/** Maximum number of groups that an error names; beyond it the error counts them. */
const GROUPS_MAX = 3

/** Returns the groups of the objects among which the rejected one is: `(ns1/web, ns1/api)`; empty for none. */
export function groupsText(groups: readonly string[], noun: string): string {
  const distinct = new Set(groups.filter(group => group !== ''))
  if (distinct.size === 0) return ''
  if (distinct.size > GROUPS_MAX) return `(one of ${groups.length} ${noun} of ${distinct.size} groups)`
  return `(${[...distinct].join(', ')})`
}

/** The errors of netlink: Linux's numbers (asm-generic), names and words. */
const ERRORS: readonly (readonly [errno: number, name: string, words: string])[] = [
  [1, 'EPERM', 'Operation not permitted'],
  [2, 'ENOENT', 'No such file or directory'],
  [3, 'ESRCH', 'No such process'],
  [4, 'EINTR', 'Interrupted system call'],
  [5, 'EIO', 'Input/output error'],
  [6, 'ENXIO', 'No such device or address'],
  [7, 'E2BIG', 'Argument list too long'],
  [9, 'EBADF', 'Bad file descriptor'],
  [11, 'EAGAIN', 'Resource temporarily unavailable'],
  [12, 'ENOMEM', 'Cannot allocate memory'],
  [13, 'EACCES', 'Permission denied'],
  [14, 'EFAULT', 'Bad address'],
  [16, 'EBUSY', 'Device or resource busy'],
  [17, 'EEXIST', 'File exists'],
  [19, 'ENODEV', 'No such device'],
  [22, 'EINVAL', 'Invalid argument'],
  [23, 'ENFILE', 'Too many open files in system'],
  [24, 'EMFILE', 'Too many open files'],
  [28, 'ENOSPC', 'No space left on device'],
  [31, 'EMLINK', 'Too many links'],
  [33, 'EDOM', 'Numerical argument out of domain'],
  [34, 'ERANGE', 'Numerical result out of range'],
  [36, 'ENAMETOOLONG', 'File name too long'],
  [38, 'ENOSYS', 'Function not implemented'],
  [40, 'ELOOP', 'Too many levels of symbolic links'],
  [61, 'ENODATA', 'No data available'],
  [71, 'EPROTO', 'Protocol error'],
  [74, 'EBADMSG', 'Bad message'],
  [75, 'EOVERFLOW', 'Value too large for defined data type'],
  [85, 'ERESTART', 'Interrupted system call should be restarted'],
  [90, 'EMSGSIZE', 'Message too long'],
  [92, 'ENOPROTOOPT', 'Protocol not available'],
  [93, 'EPROTONOSUPPORT', 'Protocol not supported'],
  [95, 'EOPNOTSUPP', 'Operation not supported'],
  [97, 'EAFNOSUPPORT', 'Address family not supported by protocol'],
  [99, 'EADDRNOTAVAIL', 'Cannot assign requested address'],
  [105, 'ENOBUFS', 'No buffer space available'],
  [110, 'ETIMEDOUT', 'Connection timed out'],
  [111, 'ECONNREFUSED', 'Connection refused'],
]

type Known = { readonly name: string; readonly words: string }

const BY_NUMBER: ReadonlyMap<number, Known> = new Map(
  ERRORS.map(([errno, name, words]) => [errno, { name, words }]),
)
const BY_NAME: ReadonlyMap<string, number> = new Map(ERRORS.map(([errno, name]) => [name, errno]))

/** Returns the name of an errno: `ENOENT` for 2, `errno 999` for an unknown number. */
export function errnoName(errno: number): string {
  return BY_NUMBER.get(errno)?.name ?? `errno ${errno}`
}

/** Returns the words of strerror(3) in the C locale. */
export function errnoWords(errno: number): string {
  return BY_NUMBER.get(errno)?.words ?? 'Unknown error'
}

/** Returns the number of a name; 0 for a name that is not in the table. */
export function errnoNumber(name: string): number {
  return BY_NAME.get(name) ?? 0
}

/** Returns the table, for the test that compares it with the C library's. */
export function knownErrors(): typeof ERRORS {
  return ERRORS
}
