import { finish, type Steps } from '../../base/clock.ts'
import { familyOf, type Ip, isLoopback } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import { difference, intersection, onlyValue, type Region, union } from '../../base/region.ts'
import { serverKey, type VirtualServer } from '../ipvs/state.ts'
import {
  NF_DROP,
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
} from '../nft/constants.ts'
import type { AnyTable } from '../nft/state.ts'
import { type Box, type Hook, LOCAL, loopback, regionOfIps } from './box.ts'
import { ClassMachine, NotTogether, type Surroundings } from './class-machine.ts'
import type { CompiledTable } from './compiled.ts'
import { type Decision, Follower, type Undecided } from './follower.ts'
import { HOOKNUM, type Hooks, type HooksOptions, hooksOf } from './hooks.ts'
import { newMemo } from './machine.ts'
import type { Noting } from './noting.ts'
import { rollOf } from './random.ts'
import { type ClassSets, type MemoryLog, noSets } from './sets.ts'
import type { SinglePacket } from './single.ts'

/** Packets that enter at a hook. */
interface Entering {
  readonly hook: Hook
  readonly box: Box
}

interface Alone {
  readonly mark: Octets
  readonly localIps: Surroundings['nodeIps']
}

/** The end of packets of a class. */
export interface Leaf {
  readonly machine: ClassMachine
  readonly end: 'pass' | 'reject' | 'drop' | 'endpoint'
}

interface WalkerOptions extends HooksOptions {
  readonly nodeIps: ReadonlySet<Ip>
  readonly reads?: Noting | undefined
}

/** The rules of all programs at the hooks of one family. */
export class Walker {
  readonly log: MemoryLog
  #around: Surroundings
  /** Those of the Node and of its devices, without the one that IPVS mode makes. */
  readonly #nodeIps: ReadonlySet<Ip>
  readonly #hooks: Hooks
  /** Where the addresses of this machine are known: packets to them are local, and no others. */
  readonly #localAddresses: Region | undefined
  readonly #follower: Follower

  /** Compiles the rules in steps: shared tables have tens of thousands. */
  static *of(tables: readonly AnyTable[], options: WalkerOptions): Steps<Walker> {
    return new Walker(tables, options, yield* hooksOf(tables, options))
  }

  constructor(tables: readonly AnyTable[], options: WalkerOptions, hooks = finish(hooksOf(tables, options))) {
    const { family, log, nodeIps, reads, ipvs } = options
    this.log = log
    this.#nodeIps = nodeIps
    this.#follower = new Follower(reads)
    const modelFamily = family === 'ip' ? 'IPv4' : 'IPv6'
    const ips = ipvs?.addresses.filter(its => familyOf(its) === modelFamily)
    this.#around = { nodeIps: ips === undefined ? nodeIps : new Set(ips), memo: newMemo(), log, reads }
    this.#localAddresses = ips && union([...regionOfIps(ips), ...loopback(family === 'ip' ? 4 : 16)])
    this.#hooks = hooks
  }

  get undecided(): ReadonlyMap<string, Undecided> {
    return this.#follower.undecided
  }

  get tables(): readonly CompiledTable[] {
    return this.#hooks.tables
  }

  /** Says which nat chains are followed in an order that may not be the kernel's. */
  ties(): Generator<string, void, undefined> {
    return this.#hooks.ties()
  }

  /** Takes in the elements of all sets. Otherwise the first lookups do. */
  *fill(): Steps<void> {
    for (const { sets } of this.tables) yield* sets.fill()
  }

  /** Forgets what lookups found, and what chains know: elements or rules changed. */
  forgetLookups(): void {
    this.#follower.forget()
    this.#around = { ...this.#around, memo: { ...this.#around.memo, lookups: new WeakMap() } }
  }

  /** Follows the packets of a class to their ends. */
  walk({ hook, box }: Entering): readonly Leaf[] {
    const leaves: Leaf[] = []
    for (const its of this.#existing(box))
      this.#enter(new ClassMachine(its, this.#anySets, this.#around), hook, leaves)
    return leaves
  }

  /** Follows one packet to its ends: one, unless it may roll several numbers. */
  walkAlone(single: SinglePacket, { hook, box, mark, localIps }: Entering & Alone): readonly Leaf[] {
    const start = new ClassMachine(box, this.#anySets, { ...this.#around, nodeIps: localIps })
    start.single = single
    start.mark = mark
    const leaves: Leaf[] = []
    this.#enter(start, hook, leaves)
    return leaves
  }

  #enter(start: ClassMachine, hook: Hook, leaves: Leaf[]): void {
    start.sent = hook === 'output'
    for (const machine of this.#pass(start, HOOKNUM[hook], leaves)) this.#route(machine, hook, leaves)
  }

  get #anySets(): ClassSets {
    return this.tables[0]?.sets ?? noSets(this.log)
  }

  /** Leaves out packets whose destination has another type than its address. */
  #existing(box: Box): readonly Box[] {
    const { destination, destinationType } = box
    const addresses = this.#localAddresses
    if (addresses === undefined) return [box]
    const parts = [intersection, difference].map(part => ({
      destination: part(destination, addresses),
      destinationType: part(destinationType, LOCAL),
    }))
    const real = parts.filter(part => part.destination.length > 0 && part.destinationType.length > 0)
    return real.map(part => ({ ...box, ...part }))
  }

  /**
   * Follows classes that differ in their destinations alone as one, while their packets meet the same effects. Throws
   * where a class would have to be followed by itself, or a rule of ours is beyond the evaluator.
   */
  walkTogether(classes: readonly Entering[]): readonly Leaf[] {
    const [first] = classes
    const [table] = this.tables
    if (first === undefined || table === undefined) throw new NotTogether('there is nothing to follow')
    const { hook, box } = first
    const start = new ClassMachine(box, table.sets, this.#around)
    start.rolled = rollOf(start.memo, classes.length, 0).rolled
    const choices = classes.map(its => onlyValue(its.box.destination) ?? '')
    start.together = { address: { choices }, classes: start.rolled }
    const leaves: Leaf[] = []
    this.#enter(start, hook, leaves)
    return leaves
  }

  #route(machine: ClassMachine, hook: Hook, leaves: Leaf[]): void {
    if (hook === 'output') {
      const sent = this.#send(machine, leaves)
      if (!this.#hooks.isReceived) this.#finish(sent, leaves)
      else for (const each of sent) this.#loop(each, leaves)
      return
    }
    const hasInput = this.#hooks.at(NF_INET_LOCAL_IN).length !== 0
    const type = machine.region('destinationType')
    const [local, other] = [intersection(type, LOCAL), difference(type, LOCAL)]
    // Without a chain in input, packets for this node differ from others only by masquerading, which is not theirs.
    if (local.length > 0 && (hasInput || other.length === 0)) {
      const inside = other.length === 0 ? machine : machine.copy()
      inside.narrow('destinationType', local)
      inside.delivered = true
      for (const received of this.#pass(inside, NF_INET_LOCAL_IN, leaves)) {
        received.delivered = !received.isTaken
        this.#finish(received.isTaken ? this.#send(received, leaves) : [received], leaves)
      }
      if (other.length === 0) return
      machine.narrow('destinationType', other)
    }
    for (const passed of this.#pass(machine, NF_INET_FORWARD, leaves))
      this.#finish(this.#pass(passed, NF_INET_POST_ROUTING, leaves), leaves)
  }

  /** What IPVS has taken enters LOCAL_OUT anew, with a connection that is translated. */
  #send(machine: ClassMachine, leaves: Leaf[]): readonly ClassMachine[] {
    const { isTaken } = machine
    machine.isTaken = false
    const sent = isTaken ? this.#pass(machine, NF_INET_LOCAL_OUT, leaves, true) : [machine]
    return sent.flatMap(each => this.#pass(each, NF_INET_POST_ROUTING, leaves))
  }

  /** Packets of a process of this node to an address of it pass its hooks again. They are translated already. */
  #loop(machine: ClassMachine, leaves: Leaf[]): void {
    const type = machine.region('destinationType')
    const [local, other] = [intersection(type, LOCAL), difference(type, LOCAL)]
    if (local.length > 0) {
      const inside = other.length === 0 ? machine : machine.copy()
      inside.narrow('destinationType', local)
      inside.looped = true
      for (const passed of this.#pass(inside, NF_INET_PRE_ROUTING, leaves, true))
        this.#finish(this.#pass(passed, NF_INET_LOCAL_IN, leaves, true), leaves)
    }
    if (other.length === 0) return
    machine.narrow('destinationType', other)
    this.#finish([machine], leaves)
  }

  #finish(machines: readonly ClassMachine[], leaves: Leaf[]): void {
    for (const machine of machines)
      leaves.push({ machine, end: machine.to === undefined ? 'pass' : 'endpoint' })
  }

  /** Passes a hook; gives what goes on behind it, and adds what ends here to the leaves. */
  #pass(start: ClassMachine, hooknum: number, leaves: Leaf[], isTranslated = false): readonly ClassMachine[] {
    const bases = this.#hooks.at(hooknum)
    start.hook = hooknum
    let going: { readonly machine: ClassMachine; readonly natDone: boolean }[] = [
      { machine: start, natDone: isTranslated },
    ]
    for (const { chain, isNat, policy, order, isIpvs } of bases) {
      const next: typeof going = []
      this.#follower.ways = going.length
      for (const each of going) {
        const isPassed = isIpvs === true && each.machine.server !== undefined
        if (each.machine.isTaken || isPassed || (isNat && each.natDone)) {
          next.push(each)
          continue
        }
        each.machine.hookPriority = order[0] ?? 0
        for (const { machine, decision } of this.#follower.run(each.machine, chain)) {
          if (isIpvs === true && machine.server !== undefined)
            this.#takeByIpvs(machine, machine.server, decision)
          const isDrop = decision === 'drop' || (decision === 'return' && policy === NF_DROP)
          if (isDrop && decision === 'return')
            machine.decidedBy = {
              table: chain.table.name,
              chain: chain.name,
              rule: chain.rules.length + 1,
              isOwn: chain.isOwn,
            }
          if (isDrop || decision === 'reject') leaves.push({ machine, end: isDrop ? 'drop' : 'reject' })
          else {
            if (decision === 'masquerade') machine.masquerade = true
            // Connection tracking knows nothing of what IPVS does: nat chains are called behind it.
            const translates = isIpvs !== true && (decision === 'dnat' || decision === 'masquerade')
            next.push({ machine, natDone: each.natDone || translates })
          }
        }
      }
      going = next
    }
    return going.map(({ machine }) => machine)
  }

  /**
   * Packets to a real server on this node go on in the same hook. What receives packets at an address that is no other
   * device's is ours: the address is bound for a Service, which may be gone.
   */
  #takeByIpvs(machine: ClassMachine, server: VirtualServer, decision: Decision): void {
    const isOwn = !this.#nodeIps.has(server.ip) && !isLoopback(server.ip)
    machine.decidedBy = { table: 'IPVS', chain: serverKey(server), rule: undefined, isOwn }
    machine.isTaken = decision === 'accept' || (decision === 'dnat' && machine.toType !== LOCAL)
  }
}
