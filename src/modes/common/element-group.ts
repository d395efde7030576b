import { sameElement } from '../../kernel/nft/diff-elements.ts'
import type { ElementGroup } from '../../kernel/nft/state.ts'
import type { PortFrontends } from '../../model/frontend.ts'

const GROUP_LENGTH_MAX = 64

/**
 * Whether a rendered group equals the present one except for the order, which the kernel chooses. The present
 * one is then kept, so that the diff skips it. Long groups are not compared here: the diff compares them.
 */
export function sameGroup(present: ElementGroup, made: ElementGroup): boolean {
  const { length } = made
  if (present.length !== length || length > GROUP_LENGTH_MAX) return false
  for (let i = 0; i < length; i++) {
    const element = made[i]
    let j = 0
    while (j < length && !sameElement(present[j], element)) j++
    if (j === length) return false
  }
  return true
}

/** The maximum length of a comment: nft keeps the length in one byte. */
const COMMENT_MAX = 250

/** Makes the comment that names the port, for nft and for later reads of the kernel. */
export function commentOf({ displayName }: PortFrontends): string {
  return displayName.length <= COMMENT_MAX ? displayName : displayName.slice(0, COMMENT_MAX)
}

/** The prefix of groups whose elements serve no single Service. Names of Services cannot begin with it. */
const SHARED = '@'

export const GROUP_NODEPORT_IPS = `${SHARED}nodeport-ips`

/** Gives the Service whose elements a group holds; undefined for a shared group. */
export function serviceOfGroup(group: string): string | undefined {
  return group.startsWith(SHARED) || group.startsWith('\0') ? undefined : group
}
