import { sameElement } from '../../kernel/nft/diff-elements.ts'
import type { ElementGroup } from '../../kernel/nft/state.ts'
import type { PortFrontends } from '../../model/frontend.ts'

const GROUP_LENGTH_MAX = 64

/**
 * Whether a group that was made is equal to the one that is there but for its order, which is the kernel's own. The
 * one that is there is then kept, so that a comparison of tables has nothing to do. Of long groups this leaves the
 * answer to the comparison.
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

/** nft keeps a comment's length in one byte. */
const COMMENT_MAX = 250

/** Tells nft, and whoever reads the kernel later, which port it is. */
export function commentOf({ displayName }: PortFrontends): string {
  return displayName.length <= COMMENT_MAX ? displayName : displayName.slice(0, COMMENT_MAX)
}

/** Groups of elements that serve no single Service begin so; names of Services cannot. */
const SHARED = '@'

export const GROUP_NODEPORT_IPS = `${SHARED}nodeport-ips`

/** The Service whose elements a group holds; undefined when it is shared by all. */
export function serviceOfGroup(group: string): string | undefined {
  return group.startsWith(SHARED) || group.startsWith('\0') ? undefined : group
}
