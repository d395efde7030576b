import type { Octets } from '../../../src/base/octets.ts'
import type { DATA, ExpressionAttributes, HOOK, SET } from '../../../src/kernel/nft/schema.ts'
import type { AttributeWriter } from '../../../src/netlink/attribute.ts'
import type { ValuesOf } from '../../../src/netlink/schema.ts'

/** What the fake keeps of nf_tables: objects that change in place, each change with a way back (see Journal). */
export interface FakeTable {
  /** NFPROTO_*. */
  readonly family: number
  readonly name: string
  readonly handle: bigint
  readonly userdata: string | undefined
  flags: number
  /** What chains, sets and rules are numbered by; a table that was remade begins anew, and a refused batch uses some up. */
  readonly handles: Handles
  readonly chains: Map<string, FakeChain>
  readonly sets: Map<string, FakeSet>
}

export interface FakeChain {
  readonly name: string
  readonly handle: bigint
  readonly hook: ValuesOf<typeof HOOK> | undefined
  readonly type: string | undefined
  readonly userdata: string | undefined
  policy: number | undefined
  rules: FakeRule[]
}

export interface FakeRule {
  readonly handle: bigint
  readonly expressions: readonly ExpressionAttributes[]
  readonly userdata: string | undefined
  /** NFTA_RULE_EXPRESSIONS as the kernel lists it. */
  readonly dumped: Octets
  /** Chains that it leads to. */
  readonly targets: readonly string[]
}

export class Handles {
  #last = 0n

  next(): bigint {
    return ++this.#last
  }
}

/** What listeners hear of a change; the sequence number is that of the message that asked for it. */
export interface Notice {
  /** NFT_MSG_*. */
  readonly kind: number
  readonly family: number
  readonly asked: { readonly sequence: number }
  /** Appends the attributes, as the kernel words them. */
  readonly write: (out: AttributeWriter) => void
}

export interface FakeSet {
  readonly name: string
  readonly handle: bigint
  readonly flags: number
  readonly keyType: number
  readonly keyLength: number
  readonly dataType: number | undefined
  readonly dataLength: number | undefined
  readonly timeoutMs: bigint
  readonly userdata: string | undefined
  /** Of every element; only counters are known here. */
  readonly expression: ValuesOf<typeof SET>['expression']
  size: number
  readonly elements: Map<string, FakeElement>
}

export interface FakeElement {
  readonly key: string
  readonly data: ValuesOf<typeof DATA> | undefined
  readonly userdata: string | undefined
  /** Milliseconds; undefined where the set's own timeout, or none, counts. */
  readonly timeoutMs: bigint | undefined
  /** On the fake's clock, milliseconds; undefined for elements that stay. */
  readonly expiresAtMs: number | undefined
}

/** A refusal of one message, with the attribute to blame. */
export class Refusal extends Error {
  override readonly name = 'Refusal'
  readonly errno: number
  /** Byte offset within the message. */
  readonly offset: number | undefined

  constructor(errno: number, offset?: number) {
    super(`errno ${errno}`)
    this.errno = errno
    this.offset = offset
  }
}

/** Remembers how to take back what a transaction did so far. */
export class Journal {
  readonly #undo: (() => void)[] = []
  readonly #went = new Set<bigint>()
  /** Changes so far: without any there is no new generation. */
  changes = 0
  /** In order; made when somebody hears them. */
  readonly notices: (() => Notice)[] = []
  /** Tables whose jumps changed. */
  readonly toValidate = new Set<FakeTable>()
  /** Where in the message to look for the culprit, if a refusal does not say. */
  blame: (() => number | undefined) | undefined

  /** A rule goes in this batch. */
  went(handle: bigint): void {
    this.#went.add(handle)
  }

  wentBefore(handle: bigint): boolean {
    return this.#went.has(handle)
  }

  did(undo: () => void): void {
    this.#undo.push(undo)
    this.changes++
  }

  put<K, V>(map: Map<K, V>, key: K, value: V): void {
    const before = map.get(key)
    map.set(key, value)
    this.did(() => (before === undefined ? map.delete(key) : map.set(key, before)))
  }

  remove<K, V>(map: Map<K, V>, key: K): void {
    const before = map.get(key)
    map.delete(key)
    this.did(() => before !== undefined && map.set(key, before))
  }

  culprit(): number | undefined {
    return this.blame?.()
  }

  rollBack(): void {
    for (let undo = this.#undo.pop(); undo !== undefined; undo = this.#undo.pop()) undo()
    this.changes = 0
    this.notices.length = 0
  }
}

/** All of one network namespace, and how messages of one transaction may change it. */
export interface Namespace {
  readonly tables: Map<string, FakeTable>
  /** Names of ipsets by number. What is in them is none of nf_tables' business. */
  readonly ipsets: Map<number, string>
  /** Expressions and types of chains whose module is missing: `2 reject` for those of one family, `nat chain`, `10 table`. */
  readonly absent: Set<string>
  /** Milliseconds, for elements with timeouts. */
  readonly nowMs: () => number
  /** Tables have a numbering of their own. */
  readonly tableHandles: Handles
}

export function tableKey(family: number, name: string): string {
  return `${family} ${name}`
}

/** Names of chains that rules and elements of `table` lead to, once for each time. */
export function* chainReferences(table: FakeTable): IterableIterator<string> {
  for (const chain of table.chains.values()) {
    for (const rule of chain.rules) yield* rule.targets
  }
  for (const set of table.sets.values()) {
    for (const { data } of set.elements.values()) {
      const name = data?.verdict?.chain
      if (name !== undefined) yield name
    }
  }
}

/** Names of sets that rules of `table` look into or write to. */
export function* setReferences(table: FakeTable): IterableIterator<string> {
  for (const chain of table.chains.values()) {
    for (const rule of chain.rules) {
      for (const expression of rule.expressions) {
        if (expression.tag !== 'lookup' && expression.tag !== 'dynset') continue
        if (expression.data.set !== undefined) yield expression.data.set
      }
    }
  }
}
