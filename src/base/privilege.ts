/** What to do about a failure that says EPERM anywhere among its causes; undefined for all others. */
export function privilegeHint(error: unknown): string | undefined {
  for (let at = error, depth = 0; at instanceof Error && depth < 10; at = at.cause, depth++)
    if ('code' in at && at.code === 'EPERM')
      return 'this needs CAP_NET_ADMIN: run as root, or try it in a network namespace of your own (unshare -Urn)'
  return undefined
}
