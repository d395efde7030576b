import { familyOf, type Ip, isLoopback } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import { serverKey, type VirtualServer } from '../../kernel/ipvs/state.ts'
import {
  NF_DROP,
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
} from '../../kernel/nft/constants.ts'
import type { AnyTable } from '../../kernel/nft/state.ts'
import type { CompiledTable, CompileOptions } from './compiled.ts'
import { type Decision, Follower, withoutEchoes } from './follower.ts'
import { type BaseChain, Hooks } from './hooks.ts'
import { ClassMachine, type Surroundings } from './machine.ts'
import { difference, intersection, type Region, union } from './region.ts'
import { type ClassSets, type MemoryLog, noSets } from './sets.ts'
import type { SinglePacket } from './single.ts'
import { type Box, type Hook, LOCAL, loopback, regionOfIps } from './values.ts'

interface Entering {
  readonly hook: Hook
  readonly box: Box
}

interface Alone {
  readonly mark: Octets
  readonly localIps: Surroundings['nodeIps']
}

export interface Leaf {
  readonly machine: ClassMachine
  readonly end: 'pass' | 'reject' | 'drop' | 'endpoint' | 'unknown'
}

interface WalkerOptions extends CompileOptions {
  readonly nodeIps: ReadonlySet<Ip>
}

/** The rules of all programs at the hooks of one family. */
export class Walker {
  readonly log: MemoryLog
  readonly #around: Surroundings
  /** Addresses of the Node and of its devices, without the device that IPVS mode makes. */
  readonly #nodeIps: ReadonlySet<Ip>
  readonly #hooks: Hooks
  /** The local addresses, if the addresses of this machine are known; no others are local then. */
  readonly #localAddresses: Region | undefined
  readonly #follower = new Follower()

  constructor(tables: readonly AnyTable[], options: WalkerOptions) {
    const { family, log, nodeIps, ipvs } = options
    this.log = log
    this.#nodeIps = nodeIps
    const modelFamily = family === 'ip' ? 'IPv4' : 'IPv6'
    const ips = ipvs?.addresses.filter(its => familyOf(its) === modelFamily)
    this.#around = { nodeIps: ips === undefined ? nodeIps : new Set(ips), log }
    this.#localAddresses = ips && union([...regionOfIps(ips), ...loopback(family === 'ip' ? 4 : 16)])
    this.#hooks = new Hooks(tables, options)
  }

  get tables(): readonly CompiledTable[] {
    return this.#hooks.tables
  }

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

  /** Packets that IPVS has taken enter LOCAL_OUT anew, with a translated connection. */
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

  /** Passes a hook; gives what continues behind it, and adds what ends here to the leaves. */
  #pass(start: ClassMachine, hooknum: number, leaves: Leaf[], isTranslated = false): readonly ClassMachine[] {
    start.hook = hooknum
    let going: readonly Passing[] = [{ machine: start, natDone: isTranslated }]
    for (const base of this.#hooks.at(hooknum)) {
      const next: Passing[] = []
      this.#follower.ways = going.length
      for (const each of going) {
        const isPassed = base.isIpvs === true && each.machine.server !== undefined
        const isOutside = base.isNat && (each.natDone || each.machine.untracked || !this.#hooks.isTracked)
        if (each.machine.isTaken || isPassed || isOutside) next.push(each)
        else this.#enterChain(base, each, { next, leaves })
      }
      going = withoutEchoes(next)
    }
    return going.map(({ machine }) => machine)
  }

  #enterChain(base: BaseChain, { machine: start, natDone }: Passing, { next, leaves }: Ends): void {
    const { chain, policy, order, isIpvs, ties } = base
    const before = ties.length === 0 ? undefined : start.copy()
    start.hookPriority = order[0] ?? 0
    for (const { machine, decision } of this.#follower.run(start, chain)) {
      if (isIpvs === true && machine.server !== undefined) this.#takeByIpvs(machine, machine.server, decision)
      const isDrop = decision === 'drop' || (decision === 'return' && policy === NF_DROP)
      if (isDrop && decision === 'return') {
        const { table, name, rules, isOwn } = chain
        machine.decidedBy = { table: table.name, chain: name, rule: rules.length + 1, isOwn }
      }
      // Connection tracking knows nothing of what IPVS does: nat chains are called behind it.
      const translates = isIpvs !== true && (decision === 'dnat' || decision === 'masquerade')
      if (before !== undefined && (translates || isDrop || decision === 'reject'))
        this.#doubtOrder(base, before, { machine, leaves })
      if (isDrop) leaves.push({ machine, end: 'drop' })
      else if (decision === 'reject' || decision === 'unknown') leaves.push({ machine, end: decision })
      else {
        if (decision === 'masquerade') machine.masquerade = true
        next.push({ machine, natDone: natDone || translates })
      }
    }
  }

  /** A dump does not show which of two deciding nat chains of one priority the kernel calls first. */
  #doubtOrder(
    { ties, chain }: BaseChain,
    before: ClassMachine,
    { machine, leaves }: Pick<Ends, 'leaves'> & { readonly machine: ClassMachine },
  ): void {
    for (const other of ties) {
      const copy = before.copy()
      copy.box = machine.box
      const isMet = this.#follower
        .run(copy, other)
        .some(({ decision }) => decision !== 'return' && decision !== 'accept')
      if (!isMet) continue
      const place = `${other.table.name} ${other.name}`
      const reason = `it has the priority of ${chain.table.name} ${chain.name}, and the kernel does not show their order`
      const supposed = machine.copy()
      supposed.doubt = { place, reason, isSupposed: true }
      machine.doubt ??= { place, reason, isSupposed: false }
      leaves.push({ machine: supposed, end: 'unknown' })
      return
    }
  }

  /**
   * Packets to a real server on this node continue in the same hook. What receives packets at an address that is no other
   * device's is ours: the address is bound for a Service, which may be gone.
   */
  #takeByIpvs(machine: ClassMachine, server: VirtualServer, decision: Decision): void {
    const isOwn = !this.#nodeIps.has(server.ip) && !isLoopback(server.ip)
    machine.decidedBy = { table: 'IPVS', chain: serverKey(server), rule: undefined, isOwn }
    machine.isTaken = decision === 'accept' || (decision === 'dnat' && machine.toType !== LOCAL)
  }
}

interface Passing {
  readonly machine: ClassMachine
  readonly natDone: boolean
}

interface Ends {
  readonly next: Passing[]
  readonly leaves: Leaf[]
}

const HOOKNUM: Readonly<Record<Hook, number>> = {
  prerouting: NF_INET_PRE_ROUTING,
  output: NF_INET_LOCAL_OUT,
}
