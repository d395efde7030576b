import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import * as netlink from '../../../../src/netlink/constants.ts'

/** Younger than the oldest headers we build on (Linux 6.1), with the version that brought each: not checked below it. */
const YOUNGER: ReadonlyMap<string, string> = new Map([['NFT_TABLE_F_PERSIST', '6, 9, 0']])

const HEADERS = [
  'linux/version.h',
  'linux/netlink.h',
  'linux/netfilter.h',
  'linux/netfilter_ipv4.h',
  'linux/netfilter_ipv6.h',
  'linux/netfilter/nfnetlink.h',
  'linux/netfilter/nf_tables.h',
  'linux/netfilter/nf_nat.h',
  'linux/netfilter/nf_conntrack_common.h',
  'linux/icmp.h',
  'linux/icmpv6.h',
  'linux/rtnetlink.h',
]

function printed(name: string): string {
  const print = `  printf("${name} %lld\\n", (long long)(${name}));`
  const since = YOUNGER.get(name)
  return since === undefined ? print : `#if LINUX_VERSION_CODE >= KERNEL_VERSION(${since})\n${print}\n#endif`
}

function valuesInHeaders(names: readonly string[]): Map<string, number> {
  const folder = mkdtempSync(join(tmpdir(), 'constants-'))
  try {
    const source = [
      '#include <stdio.h>',
      '#include <netinet/in.h>',
      ...HEADERS.map(header => `#include <${header}>`),
      'int main(void) {',
      ...names.map(printed),
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
  expect(ours.size).toBeGreaterThan(150)
  const theirs = valuesInHeaders([...ours.keys()])
  for (const name of YOUNGER.keys()) if (!theirs.has(name)) ours.delete(name)
  expect([...ours]).toEqual([...theirs])
})
