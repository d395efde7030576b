import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readlinkSync } from 'node:fs'
import { expect, test } from 'vitest'
import { freshNetns, netnsName } from '../support/lab/netns.ts'

const NETNS = '/proc/self/ns/net'

test('a fresh network namespace is entered by this process and by those it starts afterwards', async () => {
  const before = netnsName()
  const unshared = execFileSync('readlink', [NETNS], { encoding: 'utf8' }).trim()
  expect(unshared).toBe(before)

  freshNetns()

  expect(netnsName()).not.toBe(before)
  expect(readlinkSync(NETNS)).toBe(netnsName())
  expect(execFileSync('readlink', [NETNS], { encoding: 'utf8' }).trim()).toBe(netnsName())
  const child = spawn('readlink', [NETNS], { stdio: ['ignore', 'pipe', 'inherit'] })
  const chunks: Buffer[] = []
  child.stdout.on('data', chunk => chunks.push(chunk))
  await once(child, 'close')
  expect(Buffer.concat(chunks).toString().trim()).toBe(netnsName())
})

test('two fresh namespaces in a row are different and empty', () => {
  freshNetns()
  const first = netnsName()
  execFileSync('ip', ['link', 'add', 'veth0', 'type', 'veth', 'peer', 'name', 'veth1'])
  freshNetns()
  expect(netnsName()).not.toBe(first)
  const links = execFileSync('ip', ['-o', 'link'], { encoding: 'utf8' }).trim().split('\n')
  expect(links).toHaveLength(1)
})
