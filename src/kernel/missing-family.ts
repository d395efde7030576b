/** Errors of every subsystem for a family that the kernel was built without. */
const ALWAYS: readonly string[] = ['EAFNOSUPPORT', 'EOPNOTSUPP']

/**
 * Errors for an object of a family that the kernel cannot program. Other errors have other causes, such as objects of
 * another program. nf_tables: a part of it is missing. IPVS: ipsets have no type for the family, or IPv6 is disabled for
 * the device (EACCES, the sysctl disable_ipv6).
 */
const CODES = {
  nftables: new Set([...ALWAYS, 'ENOENT', 'EPROTONOSUPPORT']),
  ipvs: new Set([...ALWAYS, 'EACCES', 'IPSET_ERR_FIND_TYPE', 'IPSET_ERR_INVALID_FAMILY']),
} as const

/** Returns whether an error about an object of a family means that the kernel lacks the family. */
export function isMissingFamily(subsystem: keyof typeof CODES, code: string): boolean {
  return CODES[subsystem].has(code)
}
