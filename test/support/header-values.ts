import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

interface HeaderValues {
  /** Such as linux/netlink.h. */
  readonly headers: readonly string[]
  readonly names: readonly string[]
  /** Constants that older headers lack, with the version that brought each (`6, 9, 0`): left out below it. */
  readonly younger?: ReadonlyMap<string, string>
}

/** The values that the machine's own kernel headers give to constants, by a C program. */
export function valuesInHeaders({ headers, names, younger = new Map() }: HeaderValues): Map<string, number> {
  const folder = mkdtempSync(join(tmpdir(), 'constants-'))
  try {
    const source = [
      '#include <stdio.h>',
      '#include <netinet/in.h>',
      '#include <linux/version.h>',
      ...headers.map(header => `#include <${header}>`),
      'int main(void) {',
      ...names.map(name => printed(name, younger.get(name))),
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

function printed(name: string, since: string | undefined): string {
  const print = `  printf("${name} %lld\\n", (long long)(${name}));`
  return since === undefined ? print : `#if LINUX_VERSION_CODE >= KERNEL_VERSION(${since})\n${print}\n#endif`
}
