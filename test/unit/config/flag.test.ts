import { describe, expect, it } from 'vitest'
import { FlagReader, type FlagSpec, flags, readArguments } from '../../../src/config/flag.ts'

const SPECS: readonly FlagSpec[] = [
  { name: 'name', kind: 'text', default: '', help: '' },
  { name: 'on', kind: 'bool', default: 'false', help: '' },
  { name: 'some-list', kind: 'list', default: '', help: '' },
  { name: 'v', short: 'v', kind: 'integer', default: '0', help: '' },
  { name: 'output', short: 'o', kind: 'text', default: '', help: '' },
]

function read(...argv: string[]) {
  return readArguments(argv, SPECS)
}

function reader(...argv: string[]) {
  return new FlagReader(read(...argv))
}

describe('flags', () => {
  it('reads the usage of a flag as help prints it', () => {
    const [output, gates, period, isOn] = flags({
      '-o, --output FORMAT = text': ['the form', { choices: ['text', 'json'] }],
      '--gates NAME=BOOL,...': 'gates',
      '--period DURATION = 1m0s': 'the time',
      '--on = true': 'on',
    })
    const form = { name: 'output', short: 'o', kind: 'text', placeholder: 'FORMAT', default: 'text' }
    expect(output).toEqual({ ...form, help: 'the form', choices: ['text', 'json'] })
    expect(gates).toEqual({ name: 'gates', kind: 'list', placeholder: 'NAME=BOOL,...', help: 'gates' })
    expect(period).toMatchObject({ kind: 'duration', placeholder: 'DURATION', default: '1m0s' })
    expect(isOn).toEqual({ name: 'on', kind: 'bool', default: 'true', help: 'on' })
  })
})

describe('readArguments', () => {
  it('reads booleans with and without a value, and never takes the next argument for one', () => {
    expect(reader('--on').bool('on')).toBe(true)
    expect(reader('--on=false').bool('on')).toBe(false)
    expect(reader('--on=T').bool('on')).toBe(true)
    expect(read('--on', 'false').positionals).toEqual(['false'])
  })

  it('takes everything after -- as arguments, and a single dash as one', () => {
    expect(read('-', '--', '--name=x').positionals).toEqual(['-', '--name=x'])
  })

  it('misses a value at the end', () => {
    expect(read('-o').errors).toEqual([{ path: '-o', message: 'needs a value' }])
  })
})
