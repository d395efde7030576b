import { expect, it } from 'vitest'
import { KERNEL_FILE, RULES_FILE } from '../../../src/cli/bundle.ts'
import { proveKernel } from '../../../src/cli/verify.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { computeIn, NFTABLES } from '../../support/pipeline.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'

it.each([
  ['says the addresses of its machine', true, []],
  [
    'is of an older build',
    false,
    [expect.stringMatching(/^the machine of the file has the addresses of this/)],
  ],
])('assumes addresses where a bundle with a source needs them: it %s', async (_, isKnown, expected) => {
  const { resolved } = computeIn(NFTABLES, {}, LOCAL_IPS)
  const kernel = Buffer.from(JSON.stringify({ ownAddresses: ['192.0.2.1'] }))
  const files = new Map([
    [RULES_FILE, Buffer.alloc(0)],
    ...(isKnown ? ([[KERNEL_FILE, kernel]] as const) : []),
  ])
  const loaded = { ...resolved, refusedSlices: [], notKnown: [] }
  const { assumptions } = await proveKernel(configFrom([]), loaded, {
    bundle: { manifest: {}, files },
    takesAddresses: true,
  })
  expect(assumptions.filter(its => its.includes('addresses'))).toEqual(expected)
})
