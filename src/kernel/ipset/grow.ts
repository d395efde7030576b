import {
  BITMAP_ELEMENTS_MAX,
  type GroupedEntries,
  type Ipset,
  type IpsetOperation,
  SET_NAME_BYTES_MAX,
} from './state.ts'

/**
 * Returns the sizes for a set of this many elements: room for twice as many, and one or two elements per bucket from
 * the start, because growing a hash while filling it takes longer than filling it.
 */
export function capacityFor(elements: number): Pick<Ipset, 'maxElements' | 'hashSize'> {
  // The attributes hold no power of two above 2 ** 31.
  const wanted = Math.min(Math.max(elements, 1), 2 ** 30)
  // kube-proxy's sizes at least.
  return {
    maxElements: Math.max(65_536, 2 ** Math.ceil(Math.log2(wanted * 2))),
    hashSize: Math.max(1024, 2 ** Math.floor(Math.log2(wanted))),
  }
}

/** The operations that replace a set by a larger one of the same name, in two steps. */
export interface Growth {
  readonly set: Ipset
  /** The first step; rules do not refer to the new set yet. */
  readonly build: readonly IpsetOperation[]
  /** The second step, unless an operation of `build` failed or is unknown: rules keep referring to the name. */
  readonly replace: readonly IpsetOperation[]
  /** The second step instead of `replace`, after a failure. */
  readonly abandon: readonly IpsetOperation[]
}

/** Plans a build-and-swap to a set with all these entries, old and new. It first removes the rest of a crashed one. */
export function growthOf({ set, entries, groups }: GroupedEntries): Growth {
  const size = capacityFor(entries.length)
  const larger: Ipset = {
    ...set,
    maxElements:
      set.type === 'bitmap:port' ? BITMAP_ELEMENTS_MAX : Math.max(size.maxElements, set.maxElements),
    hashSize: set.type === 'bitmap:port' ? 0 : Math.max(size.hashSize, set.hashSize),
  }
  const temporary: Ipset = { ...larger, name: temporaryName(set.name) }
  const destroy: IpsetOperation = { verb: 'destroy', name: temporary.name }
  return {
    set: larger,
    build: [
      destroy,
      { verb: 'create', set: temporary },
      { verb: 'add-entries', set: temporary, entries, groups },
    ],
    replace: [{ verb: 'swap', name: temporary.name, with: set.name }, destroy],
    abandon: [destroy],
  }
}

const SUFFIX = '-tmp'
/** The prefix kept of a name that is too long for the suffix. */
const KEPT_LENGTH = 22

/** Returns `KUBE-CLUSTER-IP-tmp`. A name without room for the suffix is shortened, and a hash keeps it unique. */
export function temporaryName(name: string): string {
  if (name.length + SUFFIX.length <= SET_NAME_BYTES_MAX) return `${name}${SUFFIX}`
  return `${name.slice(0, KEPT_LENGTH)}-${numberOf(name)}${SUFFIX}`
}

/** Returns the existing sets that an interrupted build-and-swap of one of `names` left. */
export function leftoversOf(names: Iterable<string>, existing: ReadonlySet<string>): readonly string[] {
  return [...names].map(temporaryName).filter(name => existing.has(name))
}

/** Hashes a name to four hexadecimal digits: FNV-1a, folded. */
function numberOf(name: string): string {
  let hash = 0x811c9dc5
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193)
  return (((hash >>> 16) ^ hash) & 0xffff).toString(16).padStart(4, '0')
}
