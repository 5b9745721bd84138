from kvctl.cli.main import main

raise SystemExit(main())
