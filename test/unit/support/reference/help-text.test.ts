import { expect, test } from 'vitest'
import { parseGates, parseHelp } from '../../../support/reference/help-text.ts'

const HELP = `Usage:
  kube-proxy [flags]

Flags:
      --bind-address ip                 Overrides an idea. (default 0.0.0.0)
      --cleanup                         If true cleanup and exit.
      --feature-gates mapStringBool     A set of pairs. Options are:
                                        AllAlpha=true|false (ALPHA - default=false)
                                        AllBeta=true|false (BETA - default=true)
      --kube-api-content-type string    Content type (see there). (default "application/json")
  -v, --v Level                         number for the verbosity
      --version version[=true]          --version, --version=raw prints
`

test('flags have a name, a type and a default', () => {
  expect(parseHelp(HELP)).toEqual([
    { name: 'bind-address', shorthand: undefined, type: 'ip', default: '0.0.0.0' },
    { name: 'cleanup', shorthand: undefined, type: 'bool', default: '' },
    { name: 'feature-gates', shorthand: undefined, type: 'mapStringBool', default: '' },
    { name: 'kube-api-content-type', shorthand: undefined, type: 'string', default: 'application/json' },
    { name: 'v', shorthand: 'v', type: 'Level', default: '' },
    { name: 'version', shorthand: undefined, type: 'version', default: '' },
  ])
})

test('feature gates have a stage and a default', () => {
  expect(parseGates(HELP)).toEqual([
    { name: 'AllAlpha', stage: 'ALPHA', default: false },
    { name: 'AllBeta', stage: 'BETA', default: true },
  ])
})
