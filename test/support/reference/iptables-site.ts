import { execFileSync } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { finish, systemClock } from '../../../src/base/clock.ts'
import { assert } from '../../../src/base/errors.ts'
import { NfacctClient } from '../../../src/kernel/nfacct/client.ts'
import { createNftClient, type NftClient } from '../../../src/kernel/nft/client.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import { IptablesPlane } from '../../../src/modes/iptables/plane.ts'
import {
  type IptablesOptions,
  NFACCT_INVALID_DROPPED,
  NFACCT_LOCALHOST_ACCEPTED,
} from '../../../src/modes/iptables/settings.ts'
import { EMPTY_STATE, type IptablesState } from '../../../src/modes/iptables/state.ts'
import { NETLINK_NETFILTER } from '../../../src/netlink/constants.ts'
import { openNetlink } from '../../../src/netlink/native.ts'
import { enterNetns, freshNetns } from '../lab/netns.ts'
import { savedChains } from './iptables-rules.ts'
import type { SavedChains } from './iptables-text.ts'

const NO_SERVICES: ReadonlySet<string> = new Set()

/** A network namespace of its own, with nothing in it but what our plane writes. */
export class IptablesSite {
  readonly #file: string
  readonly #home: string
  readonly #descriptors: readonly number[]
  readonly #client: NftClient
  #held: IptablesState = EMPTY_STATE

  private constructor(descriptors: { readonly home: number; readonly own: number }, client: NftClient) {
    this.#descriptors = [descriptors.home, descriptors.own]
    this.#home = fileOf(descriptors.home)
    this.#file = fileOf(descriptors.own)
    this.#client = client
  }

  /** This thread is where it was before when it resolves. */
  static async open(): Promise<IptablesSite> {
    const home = openSync(NETNS, 'r')
    freshNetns()
    const own = openSync(NETNS, 'r')
    const accounts = new NfacctClient({ transport: open(), clock: systemClock })
    const client = openNft()
    enterNetns(fileOf(home))
    for (const name of [NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED])
      assert(accounts.ensure(name), `no counter ${name}: the kernel has no nfnetlink_acct`)
    await accounts.close()
    return new IptablesSite({ home, own }, client)
  }

  async close(): Promise<void> {
    await this.#client.close()
    for (const descriptor of this.#descriptors) closeSync(descriptor)
  }

  /** Nothing is in it again: what stays of KUBE-FIREWALL would be there under other settings, too. */
  clear(): void {
    enterNetns(this.#file)
    execFileSync('nft', ['flush', 'ruleset'])
    enterNetns(this.#home)
    this.#held = EMPTY_STATE
  }

  /** As a change of what was written before. */
  async write(frontends: FrontendTable, options: IptablesOptions): Promise<void> {
    const plane = new IptablesPlane({ client: this.#client, options })
    const wanted = finish(plane.render(frontends, { base: this.#held, without: NO_SERVICES }))
    const plan = finish(plane.diff(this.#held, wanted))
    if (!plan.empty) {
      const receipt = await plane.commit(plan, {})
      assert(receipt.outcome === 'committed', `${receipt.outcome}: ${receipt.refusals[0]?.error.message}`)
    }
    this.#held = plan.after
  }

  /** As iptables-nft-save prints it. */
  async saved(): Promise<SavedChains> {
    enterNetns(this.#file)
    const saving = savedChains()
    enterNetns(this.#home)
    return saving
  }
}

/** What our plane would write to make the rules of this network namespace those of the table. */
export async function planHere(
  client: NftClient,
  frontends: FrontendTable,
  options: IptablesOptions,
): Promise<readonly string[]> {
  const plane = new IptablesPlane({ client, options })
  const { state } = await plane.observe()
  const wanted = finish(plane.render(frontends, { base: state, without: NO_SERVICES }))
  const plan = finish(plane.diff(state, wanted))
  return [...plan.describe()].map(({ verb, object }) => `${verb} ${object}`)
}

export function openNft(): NftClient {
  return createNftClient({ transport: open(), clock: systemClock })
}

const NETNS = '/proc/thread-self/ns/net'

function fileOf(descriptor: number): string {
  return `/proc/self/fd/${descriptor}`
}

function open() {
  return openNetlink({ protocol: NETLINK_NETFILTER })
}
