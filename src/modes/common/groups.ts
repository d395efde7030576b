/** Groups of elements that serve no single Service begin so; names of Services cannot. */
const SHARED = '@'

export const GROUP_NODEPORT_IPS = `${SHARED}nodeport-ips`

/** The Service whose elements a group holds; undefined when it is shared by all. */
export function serviceOfGroup(group: string): string | undefined {
  return group.startsWith(SHARED) || group.startsWith('\0') ? undefined : group
}
