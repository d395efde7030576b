import { systemClock } from '../base/clock.ts'
import { finishInSlices, slicingOf } from '../base/steps.ts'
import type { Instance } from '../daemon/instance.ts'
import { IPVS_DEVICE } from '../daemon/mode-ipvs.ts'
import { openNetfilter, openRoute } from '../daemon/open.ts'
import { createIpsetClient } from '../kernel/ipset/client.ts'
import { createAddressReader } from '../kernel/link/addresses.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { NftFamily, Table } from '../kernel/nft/state.ts'
import { adoptRuleset } from '../modes/nftables/adopt.ts'
import { readIptables } from './dump-iptables.ts'
import { readWholeState } from './dump-ipvs.ts'
import type { ReadModes } from './programmed.ts'
import { namesOfElements, type ServiceNames } from './service-names.ts'

export interface WhatToRead {
  readonly families: readonly NftFamily[]
  readonly instance: Instance
}

/** Whom objects of IPVS serve, asked for when there are any; undefined where no daemon says. */
export type AskNames = (isNeeded: boolean) => ServiceNames | undefined

const NOBODY: AskNames = () => undefined

/** Everything that the kernel holds of ours, in every mode. Throws when it cannot be read. */
export async function readModes({ families, instance }: WhatToRead, ask = NOBODY): Promise<ReadModes> {
  const tables = await readTables({ families, instance })
  const iptables = await readIptables(families, instance.chains)
  const adopted = await finishInSlices(adoptRuleset({ tables: tables.nftables }), slicingOf(systemClock))
  const read = {
    families,
    nftables: adopted.ruleset.tables,
    userspace: tables.userspace,
    iptables,
    names: instance.chains,
  }
  if (tables.ipvs.length === 0) return { ...read, ipvs: undefined }
  // Elements of nftables mode, which may be taking over, say whom they serve.
  const names = ask(tables.nftables.length === 0) ?? namesOfElements(tables.ipvs)
  const state = await readWholeState()
  const reader = createAddressReader({ openTransport: openRoute, clock: systemClock, except: IPVS_DEVICE })
  try {
    return { ...read, ipvs: { state, names, localIps: await reader.read() } }
  } finally {
    await reader.close()
  }
}

/** Those of each mode: while one takes over from the other, both are there. */
export async function readTables({ families, instance }: WhatToRead): Promise<TablesOfModes> {
  const ipsets = createIpsetClient({ transport: openNetfilter(), clock: systemClock })
  const client = createNftClient({ transport: openNetfilter(), clock: systemClock, ipsets })
  try {
    const names = [instance.nftables, instance.ipvs ?? [], instance.userspace].flat()
    const places = names.flatMap(name => families.map(family => ({ family, name })))
    const { tables } = (await client.list(places)).ruleset
    const of = (name: string | undefined) => tables.filter(table => table.name === name)
    return {
      nftables: of(instance.nftables),
      ipvs: of(instance.ipvs),
      userspace: of(instance.userspace),
    }
  } finally {
    await client.close()
    await ipsets.close()
  }
}

export interface TablesOfModes {
  readonly nftables: readonly Table[]
  readonly ipvs: readonly Table[]
  readonly userspace: readonly Table[]
}
