import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'

const UNIT = readFileSync(
  fileURLToPath(new URL('../../../deploy/systemd/kprobe.service', import.meta.url)),
  'utf8',
)

function settings(name: string): string[] {
  return [...UNIT.matchAll(new RegExp(`^${name}=(.*)$`, 'gm'))].map(([, value = '']) => value)
}

it('lets V8 ask for protection keys, and refuses system calls without ending the process', () => {
  const [allowed = '', ...denied] = settings('SystemCallFilter')
  expect(allowed.split(' ')).toEqual(['@system-service', '@pkey'])
  expect(denied).toEqual(['~@privileged @resources'])
  expect(settings('SystemCallErrorNumber')).toEqual(['EPERM'])
})

it('gives the daemon CAP_NET_ADMIN and nothing else', () => {
  expect(settings('CapabilityBoundingSet')).toEqual(['CAP_NET_ADMIN'])
  expect(settings('AmbientCapabilities')).toEqual(['CAP_NET_ADMIN'])
  expect(settings('NoNewPrivileges')).toEqual(['yes'])
})
