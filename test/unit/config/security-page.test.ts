import { expect, it } from 'vitest'
import { RUN_FLAGS } from '../../../src/config/flags.ts'
import { ipvsSysctls, SYSCTLS } from '../../../src/kernel/sysctl/sysctls.ts'
import { securityEntries } from '../../support/security-page.ts'

it('SECURITY.md lists every kernel setting that the code can write, and no other', () => {
  const conntrack = Object.values(SYSCTLS)
  const ipvs = ipvsSysctls({ strictArp: true }).map(({ sysctl }) => sysctl)
  const paths = [...conntrack, ...ipvs].map(({ path }) =>
    path.replace(/^proc\/sys\//, '').replace(/^sys/, '/sys'),
  )
  const listed = securityEntries('Kernel settings').map(({ name }) => name)
  expect([...listed].sort()).toEqual([...paths, 'net/ipv4/conf/all/route_localnet'].sort())
})

it('SECURITY.md names flags that exist', () => {
  const flags = new Set(RUN_FLAGS.map(({ name }) => `--${name}`))
  const named = securityEntries('Kernel settings').flatMap(({ rest: [cell = ''] }) =>
    [...cell.matchAll(/`(--[\w-]+)`/g)].map(([, flag = '']) => flag),
  )
  expect(named.length).toBeGreaterThan(5)
  expect(named.filter(flag => !flags.has(flag))).toEqual([])
})
