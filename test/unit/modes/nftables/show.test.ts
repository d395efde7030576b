import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { finish } from '../../../../src/base/clock.ts'
import { serviceRows, serviceTable } from '../../../../src/cli/service-rows.ts'
import type { Ruleset } from '../../../../src/kernel/nft/state.ts'
import type { FrontendTable } from '../../../../src/model/frontend.ts'
import type { NodePortSelection } from '../../../../src/model/node-context.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import { resolve } from '../../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT } from '../../../../src/model/snapshot.ts'
import type { ServiceRow } from '../../../../src/modes/common/show.ts'
import { renderState } from '../../../../src/modes/nftables/render.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../../../src/modes/nftables/settings.ts'
import { kernelRows } from '../../../../src/modes/nftables/show.ts'
import { EMPTY_STATE } from '../../../../src/modes/nftables/state.ts'
import { formerTable } from '../../../support/former-tables.ts'
import { endpoint, serviceOf, sliceOf } from '../../../support/objects.ts'
import { change, computeIn, NFTABLES } from '../../../support/pipeline.ts'

const FOLDER = fileURLToPath(new URL('../../../../deploy/examples/', import.meta.url))

function exampleObjects(): unknown[] {
  const documents = ['00-node.yaml', '10-cluster.yaml', '20-shop.yaml'].flatMap(name =>
    parseAllDocuments(readFileSync(FOLDER + name, 'utf8')).map(document => document.toJS()),
  )
  return [...documents, ...JSON.parse(readFileSync(`${FOLDER}30-edge.json`, 'utf8')).items]
}

function tableOfExamples(nodePortSelection: NodePortSelection): FrontendTable {
  const events = exampleObjects().flatMap(object => {
    const event = parseObject(object)
    if (event !== undefined && !('kind' in event)) throw new Error(JSON.stringify(event))
    return event === undefined || (event.kind === 'Node' && event.key !== 'example-node') ? [] : [event]
  })
  const options = {
    nodeName: 'example-node',
    serviceProxyName: undefined,
    nodePortSelection,
    allowedExternalCidrs: [],
    allowedLoadBalancerCidrs: [],
    allowServiceExternalIps: true,
    bindAddress: undefined,
  }
  return finish(resolve(options, undefined, applyEvents(EMPTY_SNAPSHOT, events))).table
}

function rulesetOf(table: FrontendTable): Ruleset {
  return finish(renderState(table, { base: EMPTY_STATE, without: new Set() }, DEFAULT_NFTABLES_OPTIONS))
    .ruleset
}

/** In one order. */
function comparable(rows: readonly ServiceRow[]): string[] {
  return rows
    .map(row => ({
      ...row,
      endpoints: [...row.endpoints].sort(),
      ...(row.localEndpoints === undefined ? {} : { localEndpoints: [...row.localEndpoints].sort() }),
      ...(row.allowedFrom === undefined ? {} : { allowedFrom: [...row.allowedFrom].sort() }),
    }))
    .map(row => JSON.stringify(Object.entries(row).sort()))
    .sort()
}

describe('kernelRows', () => {
  it.each([
    ['on the addresses of the Node', { primary: true, cidrs: [] }],
    ['everywhere', { primary: false, cidrs: [] }],
  ])('reads back from the kernel what the model asked for, with NodePorts %s', (_, selection) => {
    const table = tableOfExamples(selection)
    const rows = kernelRows(rulesetOf(table).tables)
    expect(rows.length).toBeGreaterThan(25)
    expect(comparable(rows)).toEqual(comparable(serviceRows(table)))
    expect(kernelRows(rulesetOf(table).tables.map(formerTable))).toEqual(rows)
  })

  it('says so when a frontend leads nowhere, or to a chain that is not ours', () => {
    const { tables } = rulesetOf(tableOfExamples({ primary: true, cidrs: [] }))
    const strange = tables.map(each => ({
      ...each,
      elements: each.elements.with(
        [...each.elements.entries()].map(([group, elements]) => [
          group,
          elements.flatMap(element => {
            if (element.set !== 'dispatch') return element
            if (typeof element.data !== 'object' || element.data.chain === 'refuse') return []
            return { ...element, data: { ...element.data, chain: `foreign-${element.data.chain}` } }
          }),
        ]),
      ),
    }))
    const actions = new Set(kernelRows(strange).map(({ action }) => action.split(':')[0]))
    expect([...actions].sort()).toEqual(['undefined', 'unknown'])
  })

  it.each([{}, { sessionAffinity: 'ClientIP' }])('gives the shares of weights with %j', spec => {
    const metadata = { namespace: 'ns', name: 'web', annotations: { 'kprobe.io/weights': 'node=n1:3' } }
    const pods = [endpoint('10.1.0.1', { nodeName: 'n1' }), endpoint('10.1.0.2', { nodeName: 'n2' })]
    const objects = [serviceOf('web', '10.96.0.1', spec, { metadata }), sliceOf('web', pods)]
    const { state } = change(computeIn(NFTABLES, {}, []), { objects })
    expect(kernelRows(state.ruleset.tables)).toMatchObject([
      { frontend: '10.96.0.1:80', balance: 'shares: 10.1.0.1:8080 75 %, 10.1.0.2:8080 25 %' },
    ])
  })
})

describe('serviceTable', () => {
  it('names three endpoints and counts the others', () => {
    const row: ServiceRow = {
      service: 'ns/a',
      type: 'ClusterIP',
      protocol: 'TCP',
      frontend: '10.96.0.1:80',
      action: 'balance',
      endpoints: ['a', 'b', 'c', 'd', 'e'],
    }
    expect(serviceTable([row], { color: false })).toMatch(/a, b, c \+2 more$/m)
  })
})
