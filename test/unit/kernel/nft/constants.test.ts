import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import * as netlink from '../../../../src/netlink/constants.ts'

/** Younger than the oldest headers we build on (Linux 6.1); checked against the kernel's git history instead. */
const YOUNGER = new Set(['NFT_TABLE_F_PERSIST'])

const HEADERS = [
  'linux/netlink.h',
  'linux/netfilter.h',
  'linux/netfilter/nfnetlink.h',
  'linux/netfilter/nf_tables.h',
  'linux/netfilter/nf_nat.h',
  'linux/netfilter/nf_conntrack_common.h',
  'linux/icmp.h',
  'linux/icmpv6.h',
  'linux/rtnetlink.h',
]

function valuesInHeaders(names: readonly string[]): Map<string, number> {
  const folder = mkdtempSync(join(tmpdir(), 'constants-'))
  try {
    const source = [
      '#include <stdio.h>',
      '#include <netinet/in.h>',
      ...HEADERS.map(header => `#include <${header}>`),
      'int main(void) {',
      ...names.map(name => `  printf("${name} %lld\\n", (long long)(${name}));`),
      '  return 0;',
      '}',
    ].join('\n')
    writeFileSync(join(folder, 'print.c'), source)
    execFileSync('gcc', ['-o', join(folder, 'print'), join(folder, 'print.c')])
    const lines = execFileSync(join(folder, 'print'), { encoding: 'utf8' }).trim().split('\n')
    return new Map(lines.map(line => [line.split(' ')[0] ?? '', Number(line.split(' ')[1])]))
  } finally {
    rmSync(folder, { recursive: true })
  }
}

it('gives every constant the value it has in the kernel headers', () => {
  const ours = new Map<string, number>(Object.entries({ ...netlink, ...nft }))
  for (const name of YOUNGER) ours.delete(name)
  expect(ours.size).toBeGreaterThan(180)
  expect([...ours]).toEqual([...valuesInHeaders([...ours.keys()])])
})
